package arch

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"strings"
)

// checkDocumented: every exported name of non-test code has a comment, on it or on its group.
func checkDocumented(t *tree) []string {
	var out []string
	complain := func(n ast.Node, name string) {
		out = append(out, fmt.Sprintf("%s: %s has no comment: say what its signature does not (units, range, who may call, meaning of zero)", t.at(n), name))
	}
	for _, s := range t.code(false) {
		for _, d := range s.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				r := receiver(d)
				if d.Doc == nil && d.Name.IsExported() && (r == "" || ast.IsExported(r)) {
					complain(d, d.Name.Name)
				}
			case *ast.GenDecl:
				if d.Doc == nil || d.Tok == token.TYPE {
					undocumented(d, complain)
				}
			}
		}
	}
	return out
}

// undocumented reports the exported names of a group that have no comment of their own.
func undocumented(d *ast.GenDecl, complain func(ast.Node, string)) {
	for _, spec := range d.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			if spec.Name.IsExported() && spec.Doc == nil && spec.Comment == nil && (d.Doc == nil || len(d.Specs) > 1) {
				complain(spec, spec.Name.Name)
			}
		case *ast.ValueSpec:
			for _, name := range spec.Names {
				if name.IsExported() && spec.Doc == nil && spec.Comment == nil {
					complain(spec, name.Name)
				}
			}
		}
	}
}

// checkPackageDoc: exactly one file of a package says what the package is for, what it promises and what it refuses.
// Test packages beside it and packages that are tests only may do without.
func checkPackageDoc(t *tree) []string {
	type count struct {
		docs []string
		code bool
	}
	byDir := make(map[string]*count)
	for _, s := range t.goFiles() {
		if strings.HasSuffix(s.ast.Name.Name, "_test") {
			continue
		}
		c := byDir[s.dir]
		if c == nil {
			c = new(count)
			byDir[s.dir] = c
		}
		c.code = c.code || !s.test
		if s.ast.Doc != nil && strings.TrimSpace(s.ast.Doc.Text()) != "" {
			c.docs = append(c.docs, s.path)
		}
	}
	var out []string
	for dir, c := range byDir {
		if len(c.docs) > 1 {
			out = append(out, fmt.Sprintf("%s: has %d package comments (%s): one place says what it is for", dir, len(c.docs), strings.Join(c.docs, ", ")))
		}
		if len(c.docs) == 0 && c.code {
			out = append(out, fmt.Sprintf("%s: has no package comment: say what it is for, what it promises and what it refuses to do", dir))
		}
	}
	return out
}

// checkMap: ARCHITECTURE.md exists and names every folder with Go code.
func checkMap(t *tree) []string {
	var page *source
	for _, s := range t.files {
		if s.path == "ARCHITECTURE.md" {
			page = s
		}
	}
	if page == nil {
		return []string{"ARCHITECTURE.md: is missing: a newcomer has no map"}
	}
	var out []string
	for _, dir := range t.rooms() {
		named := regexp.MustCompile(`(^|[^\w/])` + regexp.QuoteMeta(dir) + `($|[^\w])`)
		if !named.Match(page.text) {
			out = append(out, fmt.Sprintf("ARCHITECTURE.md: does not name %s: a newcomer would not know what it is for", dir))
		}
	}
	return out
}

var decision = regexp.MustCompile(`^docs/decisions/([0-9]{4})-[a-z0-9-]+\.md$`)

// checkDecisions: the number of a decision, by which code and pages name it, is one page's alone.
func checkDecisions(t *tree) []string {
	var out []string
	taken := make(map[string]string)
	for _, s := range t.files {
		m := decision.FindStringSubmatch(s.path)
		if m == nil {
			continue
		}
		if first := taken[m[1]]; first != "" {
			out = append(out, fmt.Sprintf("%s: has the number of %s: take the next free one, and mend what names it", s.path, first))
			continue
		}
		taken[m[1]] = s.path
	}
	return out
}
