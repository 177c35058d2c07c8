package arch

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
)

// checkWaiting: tests neither sleep nor skip. Waiting for time.After alone is a sleep; in a select it is the limit of
// another wait. In a bubble of synctest a sleep takes no time, and is how its clock moves.
func checkWaiting(t *tree) []string {
	var out []string
	for _, dir := range t.rooms() {
		var files []*source
		for _, s := range t.code(true) {
			if s.dir == dir {
				files = append(files, s)
			}
		}
		opens := openers(files)
		bubbled := bubbled(files, opens)
		for _, s := range files {
			for _, d := range s.ast.Decls {
				if f, ok := d.(*ast.FuncDecl); !ok || !bubbled[f.Name.Name] {
					out = append(out, sleeps(t, s, d, opens)...)
				}
			}
			ast.Inspect(s.ast, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok && skips(call.Fun) {
					out = append(out, fmt.Sprintf("%s: a skipped test: it says nothing and looks as if it did", t.at(call)))
				}
				return true
			})
		}
	}
	return out
}

// openers tells whether a call makes a bubble: of synctest.Test, or of a function of the package that hands it a function.
func openers(files []*source) func(s *source, call *ast.CallExpr) bool {
	named := make(map[string]bool)
	direct := func(s *source, call *ast.CallExpr) bool {
		return selects(call.Fun, s.local("testing/synctest"), "Test")
	}
	for _, s := range files {
		for _, d := range s.ast.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil || !slices.ContainsFunc(f.Type.Params.List, func(p *ast.Field) bool { _, ok := p.Type.(*ast.FuncType); return ok }) {
				continue
			}
			ast.Inspect(f.Body, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok && direct(s, call) {
					named[f.Name.Name] = true
				}
				return true
			})
		}
	}
	return func(s *source, call *ast.CallExpr) bool {
		id, ok := call.Fun.(*ast.Ident)
		return direct(s, call) || ok && named[id.Name]
	}
}

// sleeps finds the sleeps of a declaration that are in no bubble. A function literal may be made before the bubble that it
// is called in, so time.After counts where no bubble is made at all.
func sleeps(t *tree, s *source, d ast.Decl, opens func(*source, *ast.CallExpr) bool) []string {
	var out []string
	clock := s.local("time")
	limits, bubble := make(map[ast.Node]bool), false
	ast.Inspect(d, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		bubble = bubble || ok && opens(s, call)
		return true
	})
	ast.Inspect(d, func(n ast.Node) bool {
		found := ""
		switch n := n.(type) {
		case *ast.CommClause:
			if wait, ok := n.Comm.(*ast.ExprStmt); ok {
				limits[wait.X] = true
			}
		case *ast.CallExpr:
			if opens(s, n) {
				return false
			}
			if selects(n.Fun, clock, "Sleep") {
				found = "time.Sleep"
			}
		case *ast.UnaryExpr:
			if call, ok := n.X.(*ast.CallExpr); ok && !bubble && n.Op == token.ARROW && !limits[n] && selects(call.Fun, clock, "After") {
				found = "a wait for time.After alone"
			}
		}
		if found != "" {
			out = append(out, fmt.Sprintf("%s: %s in a test: it is too short on a busy machine and too long on any other; "+
				"wait for the event, or use a synctest bubble", t.at(n), found))
		}
		return true
	})
	return out
}

// bubbled names the functions and methods of a package's tests that are mentioned in bubbles, and in others of them,
// alone.
func bubbled(files []*source, opens func(*source, *ast.CallExpr) bool) map[string]bool {
	type mention struct {
		name, by string
	}
	var outside []mention
	declared, found := make(map[string]bool), make(map[string]bool)
	for _, s := range files {
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				declared[f.Name.Name] = true
			}
		}
	}
	for _, s := range files {
		for _, d := range s.ast.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			in := func(call *ast.CallExpr) bool { return opens(s, call) }
			mentions(f.Body, in, func(name string, in bool) {
				if declared[name] {
					found[name] = true
					if !in {
						outside = append(outside, mention{name, f.Name.Name})
					}
				}
			})
		}
	}
	for changed := true; changed; {
		changed = false
		for _, m := range outside {
			if found[m.name] && !found[m.by] {
				delete(found, m.name)
				changed = true
			}
		}
	}
	return found
}

// mentions calls f for every name in n, and says whether it stands in a bubble.
func mentions(n ast.Node, opens func(*ast.CallExpr) bool, f func(name string, in bool)) {
	var visit func(n ast.Node, in bool)
	visit = func(n ast.Node, in bool) {
		ast.Inspect(n, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				f(n.Name, in)
			case *ast.CallExpr:
				if opens(n) && !in {
					for _, arg := range n.Args {
						visit(arg, true)
					}
					return false
				}
			}
			return true
		})
	}
	visit(n, false)
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
