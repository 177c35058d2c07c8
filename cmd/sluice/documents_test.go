package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// schema is what the Go source of the documents' types says of them.
type schema struct {
	types map[string]*ast.TypeSpec
	docs  map[string]*ast.CommentGroup
}

// readSchema parses the folders of api.
func readSchema(t *testing.T) *schema {
	t.Helper()
	s := &schema{make(map[string]*ast.TypeSpec), make(map[string]*ast.CommentGroup)}
	files, err := filepath.Glob("../../api/*/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("got %d files, %v", len(files), err)
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.TYPE {
				continue
			}
			for _, spec := range g.Specs {
				spec := spec.(*ast.TypeSpec)
				s.types[spec.Name.Name], s.docs[spec.Name.Name] = spec, g.Doc
			}
		}
	}
	return s
}

// documents writes a table of fields for each kind of document.
func documents(b *strings.Builder, s *schema) {
	b.WriteString("\n## Documents\n\nWhat the file of `serve -f` and `check -f` may hold. `[]` is each entry of a list. What this build does not honour of a document, `sluice check` says. ConfigMaps that list adapters are in operating.md.\n")
	for _, kind := range []string{"InferenceGatewayConfig", "Endpoints", "GatewayPolicy", "GlobalGateway", "InferenceModelRewrite", "InferenceObjective"} {
		fmt.Fprintf(b, "\n### %s\n\n%s\n\n| field | default | meaning |\n| --- | --- | --- |\n", kind, said(s.docs[kind]))
		s.fields(b, "spec", kind+"Spec")
	}
}

// fields writes a row for each field of the type, and for those below it.
func (s *schema) fields(b *strings.Builder, path, name string) {
	for _, f := range s.types[name].Type.(*ast.StructType).Fields.List {
		tag, _ := strconv.Unquote(f.Tag.Value)
		key, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
		at := path + "." + key
		element, list := f.Type, ""
		if p, ok := element.(*ast.StarExpr); ok {
			element = p.X
		}
		if a, ok := element.(*ast.ArrayType); ok {
			element, list = a.Elt, "[]"
		}
		inner := ""
		if id, ok := element.(*ast.Ident); ok && s.types[id.Name] != nil {
			inner = id.Name
		}
		meaning := said(f.Doc)
		if meaning == "" {
			meaning = said(s.docs[inner])
		}
		limits, value := marks(f.Doc, s.docs[inner])
		if limits != "" {
			meaning = strings.TrimSpace(meaning + " (" + limits + ")")
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", at, value, strings.ReplaceAll(meaning, "|", `\|`))
		if inner == "" {
			continue
		}
		if _, ok := s.types[inner].Type.(*ast.StructType); ok {
			s.fields(b, at+list, inner)
		}
	}
}

// said is a comment without its markers, in one line.
func said(doc *ast.CommentGroup) string {
	var words []string
	for _, line := range strings.Split(doc.Text(), "\n") {
		if !strings.HasPrefix(line, "+") {
			words = append(words, strings.Fields(line)...)
		}
	}
	return strings.Join(words, " ")
}

var marker = regexp.MustCompile(`(?m)^// \+(required|kubebuilder:(?:validation:)?(default|Enum|Minimum|Maximum)=(.*))$`)

// marks are the limits and the default that the markers of a field or of its type give.
func marks(docs ...*ast.CommentGroup) (limits, value string) {
	var all []string
	for _, doc := range docs {
		if doc == nil {
			continue
		}
		for _, c := range doc.List {
			switch m := marker.FindStringSubmatch(c.Text); {
			case m == nil:
			case m[1] == "required":
				all = append(all, "required")
			case m[2] == "default":
				value = strings.Trim(m[3], `"`)
			case m[2] == "Enum":
				all = append(all, "one of "+strings.ReplaceAll(m[3], ";", ", "))
			case m[2] == "Minimum":
				all = append(all, "from "+m[3])
			default:
				all = append(all, "to "+m[3])
			}
		}
	}
	return strings.ReplaceAll(strings.Join(all, ", "), ", to ", " to "), value
}
