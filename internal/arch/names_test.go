package arch

import (
	"fmt"
	"go/ast"
	"regexp"
	"strconv"
	"strings"
)

var vague = regexp.MustCompile(`(Manager|Helper|Helpers|Util|Utils)$|^Get[A-Z]`)

// checkNames: names say what a thing is. What manages or helps, nobody can tell from its name; a getter needs no Get.
func checkNames(t *tree) []string {
	var out []string
	for _, s := range t.code(false) {
		note := func(id *ast.Ident) {
			if vague.MatchString(id.Name) {
				out = append(out, fmt.Sprintf("%s: the name %s: say what it is or does; a getter is called like what it gets", t.at(id), id.Name))
			}
		}
		for _, d := range s.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				note(d.Name)
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if spec, ok := spec.(*ast.TypeSpec); ok {
						note(spec.Name)
					}
				}
			}
		}
	}
	return out
}

// readers are the rooms that may read the clock: whoever composes, carries requests, scrapes or follows, and engines of sim that
// answer in real time. The others are given the time as a value, so that simulation and replay drive the same code.
func readers() []string { return []string{"cmd", "front", "kube", "proxy", "scrape", "sim"} }

// checkClock: time.Now and time.Since stand in the rooms that read the clock alone.
func checkClock(t *tree) []string {
	var out []string
	for _, s := range t.code(false) {
		allowed := false
		for _, room := range readers() {
			allowed = allowed || within(s.dir, room)
		}
		clock := s.local("time")
		ast.Inspect(s.ast, func(n ast.Node) bool {
			for _, f := range []string{"Now", "Since", "Until"} {
				if e, ok := n.(*ast.SelectorExpr); ok && !allowed && selects(e, clock, f) {
					out = append(out, fmt.Sprintf("%s: time.%s: here time is a value that the caller gives, or simulation and replay are fiction", t.at(n), f))
				}
			}
			return true
		})
	}
	return out
}

var metricName = regexp.MustCompile(`^sluice_[a-z0-9_]*[a-z0-9]$`)

// checkMetrics: every metric of ours begins with sluice_, and its name is written once.
func checkMetrics(t *tree) []string {
	var out []string
	first := make(map[string]string)
	for _, s := range t.code(false) {
		registry := s.local("github.com/prometheus/client_golang/prometheus")
		ast.Inspect(s.ast, func(n ast.Node) bool {
			var name ast.Expr
			switch n := n.(type) {
			case *ast.BasicLit:
				value, err := strconv.Unquote(n.Value)
				if err != nil || !metricName.MatchString(value) {
					return true
				}
				if at := first[value]; at != "" {
					out = append(out, fmt.Sprintf("%s: the metric %s stands at %s, too: one place declares it", t.at(n), value, at))
				} else {
					first[value] = t.at(n)
				}
			case *ast.CompositeLit:
				if sel, ok := n.Type.(*ast.SelectorExpr); ok && strings.HasSuffix(sel.Sel.Name, "Opts") && selects(sel, registry, sel.Sel.Name) {
					name = keyed(n, "Name")
				}
			case *ast.CallExpr:
				if selects(n.Fun, registry, "NewDesc") && len(n.Args) > 0 {
					name = n.Args[0]
				}
			}
			if name != nil && !strings.HasPrefix(leftmost(name), "sluice_") {
				out = append(out, fmt.Sprintf("%s: a metric whose name does not begin with sluice_: on a page of many programs nobody knows whose it is", t.at(name)))
			}
			return true
		})
	}
	return out
}

// keyed is the value of a field in a composite literal, nil if it is not set.
func keyed(lit *ast.CompositeLit, field string) ast.Expr {
	for _, e := range lit.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if id, ok := kv.Key.(*ast.Ident); ok && id.Name == field {
				return kv.Value
			}
		}
	}
	return nil
}

// leftmost is the string that a chain of additions begins with, empty if that is no literal.
func leftmost(e ast.Expr) string {
	for {
		switch x := e.(type) {
		case *ast.BinaryExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		case *ast.BasicLit:
			value, err := strconv.Unquote(x.Value)
			if err != nil {
				return ""
			}
			return value
		default:
			return ""
		}
	}
}
