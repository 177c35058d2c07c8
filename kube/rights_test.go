package kube

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-gateway/sluice/translate"
)

var rewriteRights = flag.Bool("rewrite", false, "write the manifest of rights instead of comparing it")

// clusterRoleName is the reference's.
const clusterRoleName = "sagemaker-inference-gateway-controller-supplement"

// The manifest has the rights that the code has.
func TestRights(t *testing.T) {
	const path = "../deploy/chart/files/controller.yaml"
	cluster, own := rights()
	ns := translate.DefaultSystemNamespace
	subject := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: ns, Name: translate.Controller}}
	var b strings.Builder
	b.WriteString("# Made from kube's rights by go test ./kube -run TestRights -rewrite: change the Go code.\n")
	for _, o := range []any{
		&rbacv1.ClusterRole{TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole"}, ObjectMeta: metav1.ObjectMeta{Name: clusterRoleName}, Rules: cluster},
		&rbacv1.ClusterRoleBinding{TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRoleBinding"}, ObjectMeta: metav1.ObjectMeta{Name: clusterRoleName},
			Subjects: subject, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: clusterRoleName}},
		&rbacv1.Role{TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "Role"}, ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: translate.Controller}, Rules: own},
		&rbacv1.RoleBinding{TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "RoleBinding"}, ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: translate.Controller},
			Subjects: subject, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: translate.Controller}},
	} {
		text, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString("---\n" + string(text))
	}
	if *rewriteRights {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != b.String() {
		t.Errorf("%s is not what the code has (%v): run go test ./kube -run TestRights -rewrite and review the change", path, err)
	}
}

// K31: nobody may list the Secrets of the cluster, nor do everything with anything.
func TestRightsAreFew(t *testing.T) {
	cluster, own := rights()
	for _, r := range append(cluster, own...) {
		for _, list := range [][]string{r.APIGroups, r.Resources, r.Verbs} {
			if slices.Contains(list, "*") || len(list) == 0 {
				t.Errorf("%+v: got everything, or nothing", r)
			}
		}
	}
	for _, r := range cluster {
		if slices.Contains(r.Resources, "secrets") && (slices.Contains(r.Verbs, "list") || slices.Contains(r.Verbs, "watch")) {
			t.Errorf("%+v: got a right to list Secrets everywhere", r)
		}
		if slices.ContainsFunc(r.Verbs, func(v string) bool { return v == "escalate" || v == "bind" || v == "impersonate" }) {
			t.Errorf("%+v: got a right to take others", r)
		}
	}
}

// Every kind that a plan may have is one that is known here, or it would be refused at run time.
func TestKindsOfPlans(t *testing.T) {
	files, err := os.ReadDir("../translate/testdata")
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".out.yaml") {
			continue
		}
		text, err := os.ReadFile("../translate/testdata/" + f.Name())
		if err != nil {
			t.Fatal(err)
		}
		for doc := range strings.SplitSeq(string(text), "\n---\n") {
			var m metav1.TypeMeta
			if err := yaml.Unmarshal([]byte(doc), &m); err != nil || m.Kind == "" || m.APIVersion == "" {
				continue // what is different, and the status
			}
			if _, ok := madeKind(m.GroupVersionKind()); !ok {
				t.Errorf("%s: %s is not in the table of kinds", f.Name(), m.GroupVersionKind())
			}
			seen[m.Kind] = true
		}
	}
	for _, k := range madeKinds() {
		if !seen[k.Kind] {
			t.Errorf("no plan has a %s: take it out of the table of kinds", k.Kind)
		}
	}
}
