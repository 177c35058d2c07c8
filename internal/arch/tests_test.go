package arch

import (
	"fmt"
	"go/ast"
	"regexp"
	"slices"
	"strings"
)

// checkWaiting: tests neither sleep nor skip. A sleep inside synctest.Test takes no time, and is how a bubble's clock
// moves.
func checkWaiting(t *tree) []string {
	var out []string
	for _, s := range t.code(true) {
		clock, bubble := s.local("time"), s.local("testing/synctest")
		ast.Inspect(s.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if selects(call.Fun, bubble, "Test") {
				return false
			}
			if selects(call.Fun, clock, "Sleep") {
				out = append(out, fmt.Sprintf("%s: time.Sleep in a test: it is too short on a busy machine and too long on any other; wait for the event, or use a synctest bubble", t.at(call)))
			}
			return true
		})
		ast.Inspect(s.ast, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && skips(call.Fun) {
				out = append(out, fmt.Sprintf("%s: a skipped test: it says nothing and looks as if it did", t.at(call)))
			}
			return true
		})
	}
	return out
}

// skips reports whether f is t.Skip or one of its kin.
func skips(f ast.Expr) bool {
	for _, receiver := range []string{"t", "b", "f", "tb"} {
		for _, name := range []string{"Skip", "Skipf", "SkipNow"} {
			if selects(f, receiver, name) {
				return true
			}
		}
	}
	return false
}

var parserName = regexp.MustCompile(`^(Parse|Read|Scan|Decode)([A-Z]\w*)?$`)

// checkFuzz: a function that reads what others wrote is called by a test file of its package that has a Fuzz target.
func checkFuzz(t *tree) []string {
	fuzzed := make(map[string]string) // folder → text of its test files with Fuzz targets
	for _, s := range t.code(true) {
		if slices.ContainsFunc(s.ast.Decls, isFuzz) {
			fuzzed[s.dir] += string(s.text)
		}
	}
	var out []string
	for _, s := range t.code(false) {
		for _, d := range s.ast.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !parserName.MatchString(f.Name.Name) || !takesInput(f) {
				continue
			}
			if !regexp.MustCompile(`\b` + f.Name.Name + `\(`).MatchString(fuzzed[s.dir]) {
				out = append(out, fmt.Sprintf("%s: %s has no Fuzz target: what reads other people's bytes must survive any", t.at(f), f.Name.Name))
			}
		}
	}
	return out
}

func isFuzz(d ast.Decl) bool {
	f, ok := d.(*ast.FuncDecl)
	return ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Fuzz")
}

// takesInput reports whether a parameter is bytes or a reader.
func takesInput(f *ast.FuncDecl) bool {
	return slices.ContainsFunc(f.Type.Params.List, func(p *ast.Field) bool {
		switch x := p.Type.(type) {
		case *ast.ArrayType:
			elem, ok := x.Elt.(*ast.Ident)
			return ok && x.Len == nil && elem.Name == "byte"
		case *ast.SelectorExpr:
			return strings.HasSuffix(x.Sel.Name, "Reader") || strings.HasSuffix(x.Sel.Name, "ReadCloser")
		case *ast.StarExpr:
			sel, ok := x.X.(*ast.SelectorExpr)
			return ok && (sel.Sel.Name == "Reader" || sel.Sel.Name == "Scanner")
		}
		return false
	})
}
