package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
)

// shape compares a decoded tree with a Go type and returns what of it fits; ok is false where nothing does. It stands
// in for a strict JSON decoder because such a one names Go types, and stops describing at the first value of a wrong
// type.
func (d *document) shape(v any, t reflect.Type, path *field.Path) (fitting any, ok bool) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return d.shapeOwn(v, t, path)
	}
	switch t.Kind() {
	case reflect.Struct:
		return d.shapeStruct(v, t, path)
	case reflect.Map:
		return d.shapeMap(v, t, path)
	case reflect.Slice:
		return d.shapeSlice(v, t, path)
	}
	return d.shapeScalar(v, t, path)
}

func (d *document) shapeStruct(v any, t reflect.Type, path *field.Path) (any, bool) {
	m, isObject := v.(map[string]any)
	if !isObject {
		return d.misfit(v, path, "an object")
	}
	fields := jsonFields(t)
	out := make(map[string]any, len(m))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		ft, known := fields[key]
		at := child(path, key)
		if !known {
			d.say("strict decoding error: unknown field %q%s", at.String(), d.hint(key, path, fields))
			continue
		}
		if m[key] == nil {
			continue // null is absent
		}
		if fitting, ok := d.shape(m[key], ft, at); ok {
			out[key] = fitting
		}
	}
	return out, true
}

func (d *document) shapeMap(v any, t reflect.Type, path *field.Path) (any, bool) {
	m, isObject := v.(map[string]any)
	if !isObject {
		return d.misfit(v, path, "an object")
	}
	out := make(map[string]any, len(m))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if fitting, ok := d.shape(m[key], t.Elem(), path.Key(key)); ok {
			out[key] = fitting
		}
	}
	return out, true
}

// shapeSlice keeps a place for an item that doesn't fit, so that those after it keep their index.
func (d *document) shapeSlice(v any, t reflect.Type, path *field.Path) (any, bool) {
	list, isList := v.([]any)
	if !isList {
		return d.misfit(v, path, "a list")
	}
	out := make([]any, len(list))
	for i, item := range list {
		if fitting, ok := d.shape(item, t.Elem(), path.Index(i)); ok {
			out[i] = fitting
		}
	}
	return out, true
}

func (d *document) shapeScalar(v any, t reflect.Type, path *field.Path) (any, bool) {
	switch t.Kind() {
	case reflect.String:
		word, isString := v.(string)
		if !isString {
			return d.misfit(v, path, aString)
		}
		if word == "" && t.PkgPath() == reflect.TypeFor[v1alpha1.Scheduler]().PkgPath() {
			return d.misfit(v, path, "one of the words that are known here: leave it out for the default")
		}
	case reflect.Bool:
		if _, isBool := v.(bool); !isBool {
			return d.misfit(v, path, trueOrFalse)
		}
	case reflect.Int32, reflect.Int64, reflect.Int:
		n, isNumber := v.(json.Number)
		if !isNumber || strings.ContainsAny(string(n), ".eE") {
			return d.misfit(v, path, aWholeNumber)
		}
		i, err := n.Int64()
		if err != nil || reflect.Zero(t).OverflowInt(i) {
			return d.misfit(v, path, fmt.Sprintf("a whole number of at most %d", int64(1)<<(t.Bits()-1)-1))
		}
	case reflect.Float64:
		n, isNumber := v.(json.Number)
		if !isNumber {
			return d.misfit(v, path, aNumber)
		}
		if _, err := n.Float64(); err != nil {
			return d.misfit(v, path, aNumber)
		}
	default:
		return d.misfit(v, path, "absent: there is no way to read it")
	}
	return v, true
}

// shapeOwn tries values whose type reads itself, such as quantities.
func (d *document) shapeOwn(v any, t reflect.Type, path *field.Path) (any, bool) {
	raw, err := json.Marshal(v)
	if err == nil && v != nil {
		err = json.Unmarshal(raw, reflect.New(t).Interface())
	}
	if err == nil && v != nil {
		return v, true
	}
	switch t {
	case reflect.TypeFor[resource.Quantity]():
		return d.misfit(v, path, "a quantity such as 500m, 2 or 16Gi")
	case reflect.TypeFor[intstr.IntOrString]():
		return d.misfit(v, path, "a whole number or a string")
	case reflect.TypeFor[metav1.Time]():
		return d.misfit(v, path, "a time such as 2026-01-02T15:04:05Z")
	}
	return d.misfit(v, path, "a "+t.Name())
}

// What a scalar has to be.
const (
	aString      = "a string"
	aWholeNumber = "a whole number"
	aNumber      = "a number"
	trueOrFalse  = "true or false"
)

// misfit tells what a value has to be. Numbers and words are shown, unless they stand where a secret may have been
// written by mistake.
func (d *document) misfit(v any, path *field.Path, want string) (any, bool) {
	text := "must be " + want
	var value any = field.OmitValueType{}
	switch v.(type) {
	case json.Number, bool:
		value = v
		if want == aString {
			text += ": put it in quotes"
		}
	case string:
		value = v
		if want == aWholeNumber || want == aNumber || want == trueOrFalse {
			text += ", without quotes"
		}
	default:
		text += ", not " + noun(v)
	}
	if secret(path) {
		value = field.OmitValueType{}
	}
	if strings.HasSuffix(path.String(), ".apiKey") {
		text = "must be {env: NAME} or {file: PATH}: a key is never written into a document"
	}
	d.addShape(field.Invalid(path, value, text))
	return nil, false
}

func secret(path *field.Path) bool {
	s := path.String()
	return strings.Contains(s, ".apiKey") || strings.Contains(s, ".env[")
}

func noun(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case map[string]any:
		return "an object"
	case []any:
		return "a list"
	case string:
		return "a string"
	case bool:
		return "true or false"
	}
	return "a number"
}

func child(path *field.Path, name string) *field.Path {
	if path == nil {
		return field.NewPath(name)
	}
	return path.Child(name)
}

// jsonFields maps the JSON names of a struct's fields to their types, embedded ones included.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	fields := make(map[string]reflect.Type, t.NumField())
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || (name == "" && !f.Anonymous) {
			continue
		}
		if name == "" || strings.Contains(options, "inline") {
			maps.Copy(fields, jsonFields(f.Type))
			continue
		}
		fields[name] = f.Type
	}
	return fields
}

// hint says what may have been meant by a field that isn't known: the known name that is nearest, or all of them where
// they are few.
func (d *document) hint(key string, path *field.Path, fields map[string]reflect.Type) string {
	known := slices.Sorted(maps.Keys(fields))
	best, distance := "", 3
	for _, k := range known {
		if n := editDistance(strings.ToLower(key), strings.ToLower(k)); n < distance {
			best, distance = k, n
		}
	}
	if best != "" {
		return fmt.Sprintf(": did you mean %q?", child(path, best).String())
	}
	if len(known) > 20 {
		return ""
	}
	return ": known here are " + strings.Join(known, ", ")
}

// editDistance counts the letters to insert, delete or replace to make a into b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
