package arch

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
)

// The budgets. A change of a number is a decision with a reason in its commit.
const (
	maxLines      = 80
	maxComplexity = 15
	maxDepth      = 2
	maxRooms      = 22
	maxAliasShare = .02
	maxInterfaces = 5
)

// checkSize holds the functions of non-test code to their length and cyclomatic complexity.
func checkSize(t *tree) []string {
	var out []string
	for _, s := range t.code(false) {
		for _, d := range s.ast.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			lines := t.fset.Position(f.End()).Line - t.fset.Position(f.Pos()).Line + 1
			if lines > maxLines {
				out = append(out, fmt.Sprintf("%s: %s is %d lines long, more than %d: a reader holds one idea at a time", t.at(f), f.Name.Name, lines, maxLines))
			}
			if c := complexity(f); c > maxComplexity {
				out = append(out, fmt.Sprintf("%s: %s has complexity %d, more than %d: nobody tests that many paths", t.at(f), f.Name.Name, c, maxComplexity))
			}
		}
	}
	return out
}

// complexity is McCabe's (1976): one path, and one more for every branch, loop, case, && and ||, function literals
// included.
func complexity(f *ast.FuncDecl) int {
	n := 1
	ast.Inspect(f, func(node ast.Node) bool {
		switch x := node.(type) {
		case *ast.IfStmt, *ast.ForStmt, *ast.RangeStmt:
			n++
		case *ast.CaseClause:
			if x.List != nil {
				n++
			}
		case *ast.CommClause:
			if x.Comm != nil {
				n++
			}
		case *ast.BinaryExpr:
			if x.Op == token.LAND || x.Op == token.LOR {
				n++
			}
		}
		return true
	})
	return n
}

// checkDepth keeps the listing of the root the map of the system.
func checkDepth(t *tree) []string {
	var out []string
	rooms := t.rooms()
	for _, dir := range rooms {
		if n := len(strings.Split(dir, "/")); n > maxDepth {
			out = append(out, fmt.Sprintf("%s: is %d folders deep, more than %d: the listing of the root is the map", dir, n, maxDepth))
		}
	}
	if len(rooms) > maxRooms {
		out = append(out, fmt.Sprintf("%d folders hold Go code, more than %d: split by vocabulary, not by size", len(rooms), maxRooms))
	}
	return out
}

// versioned matches the last element of a package that is named for an API version, which says nothing where it is
// used.
var versioned = regexp.MustCompile(`^v\d+((alpha|beta)\d+)?$`)

// checkAliases: an own package that needs a second name has the wrong first one.
func checkAliases(t *tree) []string {
	var aliased []string
	all := 0
	for _, s := range t.code(false) {
		for _, spec := range s.ast.Imports {
			dir, ok := own(importPath(spec))
			if !ok {
				continue
			}
			all++
			if spec.Name != nil && !versioned.MatchString(path.Base(dir)) {
				aliased = append(aliased, fmt.Sprintf("%s: %s is imported as %s: a package that needs a second name has the wrong first one", t.at(spec), dir, spec.Name.Name))
			}
		}
	}
	if float64(len(aliased)) <= maxAliasShare*float64(all) {
		return nil
	}
	return aliased
}

// checkInterfaces counts the exported interfaces of non-test code and looks for two implementations of each, by method
// names.
func checkInterfaces(t *tree) []string {
	methods := make(map[string][]string) // folder.Type → names
	type promise struct {
		at, name string
		want     []string
	}
	var exported []promise
	for _, s := range t.code(false) {
		for _, d := range s.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if r := receiver(d); r != "" {
					key := s.dir + "." + r
					methods[key] = append(methods[key], d.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if name, want, ok := interfaceOf(spec); ok && ast.IsExported(name) {
						exported = append(exported, promise{t.at(spec), name, want})
					}
				}
			}
		}
	}
	var out []string
	for _, i := range exported {
		n := 0
		for _, have := range methods {
			if !slices.ContainsFunc(i.want, func(m string) bool { return !slices.Contains(have, m) }) {
				n++
			}
		}
		if len(i.want) > 0 && n < 2 {
			out = append(out, fmt.Sprintf("%s: interface %s has %d implementations: with fewer than two it is a struct or a func parameter", i.at, i.name, n))
		}
	}
	if len(exported) > maxInterfaces {
		out = append(out, fmt.Sprintf("%d exported interfaces, more than %d: each is a seam that every reader must look behind", len(exported), maxInterfaces))
	}
	return out
}

// interfaceOf returns the name and method names of a type declaration that is an interface.
func interfaceOf(spec ast.Spec) (name string, methods []string, ok bool) {
	ts, isType := spec.(*ast.TypeSpec)
	if !isType {
		return "", nil, false
	}
	it, ok := ts.Type.(*ast.InterfaceType)
	if !ok {
		return "", nil, false
	}
	for _, m := range it.Methods.List {
		for _, n := range m.Names {
			methods = append(methods, n.Name)
		}
	}
	return ts.Name.Name, methods, true
}

// receiver is the name of the type that a method belongs to, empty for a function.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil || len(f.Recv.List) == 0 {
		return ""
	}
	e := f.Recv.List[0].Type
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

// checkFolders refuses names that say nothing about what is inside.
func checkFolders(t *tree) []string {
	empty := []string{"util", "utils", "common", "helper", "helpers", "type", "types", "constant", "constants", "contract", "contracts",
		"interface", "interfaces", "mock", "mocks", "misc", "shared", "pkg"}
	var out []string
	for _, dir := range t.dirs {
		if slices.Contains(empty, path.Base(dir)) {
			out = append(out, fmt.Sprintf("%s: a folder of this name collects what nobody placed: name it for its idea", dir))
		}
	}
	return out
}
