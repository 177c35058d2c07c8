package config

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-gateway/sluice/api/v1alpha1"
)

// TestEverySettingIsAnswered goes over every field that a document can set: it is honoured, or it is named in
// NotHonoured. E39: a setting ignored in silence.
func TestEverySettingIsAnswered(t *testing.T) {
	honoured := []string{
		"spec.bbr.enabled", "spec.bbr.defaultBackend", "spec.bbr.maxRequestBodyBytes",
		"spec.schedulers[].name", "spec.schedulers[].modelName", "spec.schedulers[].modelSelector",
		"spec.schedulers[].targetPort", "spec.schedulers[].appProtocol", "spec.schedulers[].engineType",
		"spec.schedulers[].weights", "spec.schedulers[].loraAdapters", "spec.schedulers[].routeTimeout",
	}
	c, err := Parse(readFile(t, "testdata/everything.good.yaml"), "everything")
	if err != nil {
		t.Fatal(err)
	}
	var named []string
	for _, n := range c.NotHonoured {
		named = append(named, regexp.MustCompile(`\[\d+\]`).ReplaceAllString(n.Path, "[]"))
	}
	covers := func(list []string, path string) bool {
		return slices.ContainsFunc(list, func(p string) bool { return inside(path, p) })
	}
	for _, path := range settings(reflect.TypeFor[v1alpha1.InferenceGatewayConfigSpec](), "spec") {
		switch h, n := covers(honoured, path), covers(named, path); {
		case h && n:
			t.Errorf("%s is honoured and named in NotHonoured", path)
		case !h && !n:
			t.Errorf("%s is neither honoured nor named in NotHonoured", path)
		}
	}
}

// settings lists the paths of a type's fields, down to types that aren't ours.
func settings(t reflect.Type, path string) []string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		if t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct {
			path += "[]"
		}
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || !strings.HasSuffix(t.PkgPath(), "/api/v1alpha1") {
		return []string{path}
	}
	var list []string
	for name, ft := range sorted(jsonFields(t)) {
		list = append(list, settings(ft, path+"."+name)...)
	}
	return list
}
