package arch

import (
	"fmt"
	"go/ast"
)

// unused are exported functions, or whole rooms, that no other room's code uses, each with its reason.
func unused() map[string]string {
	return map[string]string{
		"sim":         "its experiments are tests",
		"route.Check": "whoever builds views calls it in tests",
	}
}

// called are methods that the standard library or a library calls through its interfaces.
func called() []string {
	return []string{"String", "Error", "Unwrap", "MarshalJSON", "UnmarshalJSON", "ServeHTTP", "Read", "Write", "Close", "WriteTo", "ReadFrom",
		"Flush", "RoundTrip", "Describe", "Collect"}
}

// checkExported: functions and methods that a room exports, code of another room uses. It goes by names, so one that
// two rooms share hides both. Types, constants and errors are left out: a set of them is whole, whoever names which. So
// are the documents in api.
func checkExported(t *tree) []string {
	users := make(map[string]map[string]bool) // name → rooms that say it after a dot
	for _, s := range t.code(false) {
		ast.Inspect(s.ast, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if users[sel.Sel.Name] == nil {
					users[sel.Sel.Name] = make(map[string]bool)
				}
				users[sel.Sel.Name][s.dir] = true
			}
			return true
		})
	}
	skip := unused()
	for _, name := range called() {
		users[name] = map[string]bool{"": true}
	}
	var out []string
	for _, s := range t.code(false) {
		if s.ast.Name.Name == "main" || within(s.dir, "api") || skip[s.dir] != "" {
			continue
		}
		for _, id := range exported(s) {
			others := len(users[id.Name])
			if users[id.Name][s.dir] {
				others--
			}
			switch excused := skip[s.dir+"."+id.Name] != ""; {
			case others == 0 && !excused:
				out = append(out, fmt.Sprintf("%s: %s is exported and no code of another room uses it: keep it in the room, or delete it", t.at(id), id.Name))
			case others > 0 && excused:
				out = append(out, fmt.Sprintf("%s: %s is used by another room's code: take it out of unused()", t.at(id), id.Name))
			}
		}
	}
	return out
}

// exported lists the exported functions and methods of a file.
func exported(s *source) []*ast.Ident {
	var out []*ast.Ident
	for _, d := range s.ast.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Name.IsExported() {
			if r := receiver(f); r == "" || ast.IsExported(r) {
				out = append(out, f.Name)
			}
		}
	}
	return out
}
