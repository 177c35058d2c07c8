package arch

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const module = "github.com/sluice-gateway/sluice"

// tree is what the checks read: every text file of a repository, Go files parsed.
type tree struct {
	fset  *token.FileSet
	files []*source
	dirs  []string
	apart []string // folders that are modules of their own: their text is held to the rules for text, their code is not ours
}

// source is one text file. Paths are relative to the root, with slashes.
type source struct {
	path, dir string
	text      []byte
	test      bool      // a Go test file
	generated bool      // by a program, which says so; nobody reads it, and only the arrows hold it
	ast       *ast.File // nil unless it is Go outside testdata
}

// biggest bounds the files that are read: nothing that people write is larger.
const biggest = 1 << 20

// load reads a tree. Hidden folders and what builds leave behind are not part of it, nor are the broken trees that the
// checks themselves are tested on.
func load(fsys fs.FS) (*tree, error) {
	t := &tree{fset: token.NewFileSet()}
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name != "." && (strings.HasPrefix(d.Name(), ".") || name == "bin" || name == "dist" || name == "internal/arch/testdata") {
				return fs.SkipDir
			}
			if _, err := fs.Stat(fsys, path.Join(name, "go.mod")); err == nil && name != "." {
				t.apart = append(t.apart, name)
			}
			t.dirs = append(t.dirs, name)
			return nil
		}
		if info, err := d.Info(); err != nil || !info.Mode().IsRegular() || info.Size() > biggest {
			return err
		}
		return t.read(fsys, name)
	})
	return t, err
}

func (t *tree) read(fsys fs.FS, name string) error {
	text, err := fs.ReadFile(fsys, name)
	if err != nil {
		return err
	}
	if !utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0 {
		return nil
	}
	s := &source{path: name, dir: path.Dir(name), text: text}
	t.files = append(t.files, s)
	if path.Ext(name) != ".go" || slices.Contains(strings.Split(name, "/"), "testdata") ||
		slices.ContainsFunc(t.apart, func(dir string) bool { return within(name, dir) }) {
		return nil
	}
	s.test = strings.HasSuffix(name, "_test.go")
	if s.ast, err = parser.ParseFile(t.fset, name, text, parser.ParseComments); err != nil {
		return fmt.Errorf("cannot parse: %w", err)
	}
	s.generated = ast.IsGenerated(s.ast)
	return nil
}

// code lists the Go files that people write, by test or not.
func (t *tree) code(test bool) []*source {
	var out []*source
	for _, s := range t.files {
		if s.ast != nil && s.test == test && !s.generated {
			out = append(out, s)
		}
	}
	return out
}

// goFiles lists all Go files that people write.
func (t *tree) goFiles() []*source { return append(t.code(false), t.code(true)...) }

// imports lists all Go files.
func (t *tree) imports() []*source {
	var out []*source
	for _, s := range t.files {
		if s.ast != nil {
			out = append(out, s)
		}
	}
	return out
}

// rooms lists the folders that hold Go files, sorted.
func (t *tree) rooms() []string {
	var out []string
	for _, s := range t.files {
		if s.ast != nil {
			out = append(out, s.dir)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// at says where a node is.
func (t *tree) at(n ast.Node) string {
	p := t.fset.Position(n.Pos())
	return fmt.Sprintf("%s:%d", p.Filename, p.Line)
}

// own returns the folder that an import path names in this repository.
func own(importPath string) (string, bool) {
	return strings.CutPrefix(importPath, module+"/")
}

// importPath is the path of an import.
func importPath(spec *ast.ImportSpec) string {
	p, err := strconv.Unquote(spec.Path.Value)
	if err != nil {
		return spec.Path.Value
	}
	return p
}

// local is the name under which a file knows the package of that path, empty if it does not import it.
func (s *source) local(of string) string {
	for _, spec := range s.ast.Imports {
		if importPath(spec) != of {
			continue
		}
		if spec.Name != nil {
			return spec.Name.Name
		}
		return path.Base(of)
	}
	return ""
}

// selects reports whether e is pkg.name, pkg being a package as the file knows it.
func selects(e ast.Expr, pkg, name string) bool {
	sel, ok := e.(*ast.SelectorExpr)
	if !ok || pkg == "" || sel.Sel.Name != name {
		return false
	}
	id, ok := sel.X.(*ast.Ident)
	return ok && id.Name == pkg
}
