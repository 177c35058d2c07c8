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

// Behind Envoy tokens are checked, and TLS is ended where there is a certificate: what forbids serving without Envoy does
// not, there.
func TestBehindEnvoy(t *testing.T) {
	c, err := Parse(readFile(t, "testdata/everything.good.yaml"), "everything")
	if err != nil {
		t.Fatal(err)
	}
	f := func(certificate bool, path string, want, fatal bool) {
		t.Helper()
		behind := c.BehindEnvoy(certificate)
		i := slices.IndexFunc(behind.NotHonoured, func(n Notice) bool { return n.Path == path })
		if (i >= 0) != want || i >= 0 && behind.NotHonoured[i].Fatal != fatal {
			t.Errorf("certificate %t, %s: got %v, want told %t, fatal %t", certificate, path, behind.NotHonoured, want, fatal)
		}
	}
	f(false, "spec.auth", false, false)
	f(false, "spec.tls", true, true)
	f(true, "spec.tls", true, false)
	f(true, "spec.bbr.replicas", true, false)
	if !c.TLS || c.JWT == nil || c.JWT.JWKSURI != "https://login.example.com/keys" || len(c.JWT.Claims) == 0 {
		t.Errorf("got TLS %t and JWT %+v, want what the document says", c.TLS, c.JWT)
	}
	if before := len(c.NotHonoured); before <= len(c.BehindEnvoy(true).NotHonoured) {
		t.Errorf("got %d notices, want more of them without Envoy", before)
	}
}
