package arch

import (
	"fmt"
	"go/ast"
	"go/token"
	"strings"
)

// checkState: no func init anywhere, and in non-test code no package-level variable that can change. A variable may
// stand at package level when it is blank, embedded, made by one of the constructors of constants, or unexported,
// initialised with a literal, and nowhere in its package assigned to, indexed into on the left, cleared or pointed at.
func checkState(t *tree) []string {
	var out []string
	for _, s := range t.goFiles() {
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == "init" && f.Recv == nil {
				out = append(out, fmt.Sprintf("%s: func init: what runs before main is composed by nobody: call it from cmd", t.at(f)))
			}
		}
	}
	for _, dir := range t.rooms() {
		var files []*source
		for _, s := range t.code(false) {
			if s.dir == dir {
				files = append(files, s)
			}
		}
		out = append(out, checkVars(t, files)...)
	}
	return out
}

// checkVars holds the variables of one package to the rule.
func checkVars(t *tree, files []*source) []string {
	var out []string
	changed := make(map[string]string)
	for _, s := range files {
		noteChanges(t, s, changed)
	}
	for _, s := range files {
		for _, d := range s.ast.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.VAR {
				continue
			}
			for _, spec := range g.Specs {
				v := spec.(*ast.ValueSpec)
				for i, name := range v.Names {
					if reason := mutable(s, g, v, i, changed[name.Name]); reason != "" {
						out = append(out, fmt.Sprintf("%s: package-level variable %s %s: state belongs to a value that someone owns", t.at(name), name.Name, reason))
					}
				}
			}
		}
	}
	return out
}

// constructors make values that nobody can change afterwards.
func constructors() map[string][]string {
	return map[string][]string{"errors": {"New"}, "regexp": {"MustCompile"}, "strings": {"NewReplacer"}}
}

// exceptions are the variables that break the rule, each with its reason.
func exceptions() map[string]string {
	return map[string]string{
		"cmd/sluice.version": "the linker sets it (-ldflags -X), which works on variables only",
		"scrape.dialects":    "its rows are pointed at to save copies, and nothing writes through the pointers",
	}
}

// mutable says why a variable counts as mutable, or nothing.
func mutable(s *source, g *ast.GenDecl, v *ast.ValueSpec, i int, changedAt string) string {
	name := v.Names[i]
	switch {
	case name.Name == "_" || exceptions()[s.dir+"."+name.Name] != "" || embedded(g.Doc) || embedded(v.Doc):
		return ""
	case changedAt != "":
		return "is changed at " + changedAt
	case i >= len(v.Values):
		return "has no initial value, so something sets it later"
	}
	switch value := v.Values[i].(type) {
	case *ast.CallExpr:
		if _, conversion := value.Fun.(*ast.ArrayType); conversion {
			return ""
		}
		for pkg, names := range constructors() {
			for _, f := range names {
				if selects(value.Fun, s.local(pkg), f) {
					return ""
				}
			}
		}
		return "is made by a call that is not known to make a constant"
	case *ast.UnaryExpr:
		return "is a pointer, through which it can change"
	case *ast.CompositeLit:
		if locks(s, value.Type) {
			return "locks or counts, so it is there to change"
		}
	}
	if name.IsExported() {
		return "is exported, so any package can change it"
	}
	return ""
}

// locks reports whether a type is one of sync or sync/atomic.
func locks(s *source, typ ast.Expr) bool {
	if generic, ok := typ.(*ast.IndexExpr); ok {
		typ = generic.X
	}
	sel, ok := typ.(*ast.SelectorExpr)
	return ok && (selects(sel, s.local("sync"), sel.Sel.Name) || selects(sel, s.local("sync/atomic"), sel.Sel.Name))
}

func embedded(doc *ast.CommentGroup) bool {
	if doc == nil {
		return false
	}
	for _, c := range doc.List {
		if strings.HasPrefix(c.Text, "//go:embed ") {
			return true
		}
	}
	return false
}

// noteChanges collects the package-level names that a file changes, with the place.
func noteChanges(t *tree, s *source, changed map[string]string) {
	declared := declarations(s)
	note := func(e ast.Expr) {
		if id := rootOf(e); id != nil && packageLevel(id, declared) {
			changed[id.Name] = t.at(id)
		}
	}
	ast.Inspect(s.ast, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.AssignStmt:
			if x.Tok != token.DEFINE {
				for _, left := range x.Lhs {
					note(left)
				}
			}
		case *ast.IncDecStmt:
			note(x.X)
		case *ast.RangeStmt:
			if x.Tok == token.ASSIGN {
				note(x.Key)
				note(x.Value)
			}
		case *ast.UnaryExpr:
			if x.Op == token.AND {
				note(x.X)
			}
		case *ast.CallExpr:
			if f, ok := x.Fun.(*ast.Ident); ok && len(x.Args) > 0 && (f.Name == "delete" || f.Name == "clear" || f.Name == "copy") {
				note(x.Args[0])
			}
		}
		return true
	})
}

// rootOf is the variable at the bottom of a chain of selections and indexes.
func rootOf(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x
		case *ast.SelectorExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.SliceExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			return nil
		}
	}
}

// packageLevel reports whether an identifier may mean a variable of the package: the parser resolves those of the file
// itself to their declaration and leaves those of other files open.
func packageLevel(id *ast.Ident, declared map[*ast.ValueSpec]bool) bool {
	if id.Obj == nil {
		return true
	}
	spec, ok := id.Obj.Decl.(*ast.ValueSpec)
	return ok && declared[spec]
}

// declarations are the declarations of a file at package level.
func declarations(s *source) map[*ast.ValueSpec]bool {
	specs := make(map[*ast.ValueSpec]bool)
	for _, d := range s.ast.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.VAR {
			for _, spec := range g.Specs {
				specs[spec.(*ast.ValueSpec)] = true
			}
		}
	}
	return specs
}
