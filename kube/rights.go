package kube

import (
	"context"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	poolv1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
)

// rights are what a Controller has to be allowed in the whole cluster, and in its own namespace besides.
//
// It may write what plans have objects of, in any namespace, since configurations may be in any. It may not list Secrets
// but its own namespace's: elsewhere it reads and writes those that it made, by name.
func rights() (cluster, own []rbacv1.PolicyRule) {
	rule := func(group string, resources []string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: verbs}
	}
	look, all := []string{"get", "list", "watch"}, []string{"get", "list", "watch", "create", "patch", "delete"}
	configs, policies := configKind(), policyKind()
	cluster = append(cluster,
		rule(configs.Group, []string{configs.resource}, append(look, "patch", "update")...),
		rule(configs.Group, []string{configs.resource + "/status"}, "get", "patch"),
		rule(configs.Group, []string{configs.resource + "/finalizers"}, "update"), // some clusters ask for it of whoever names an owner
		rule(policies.Group, []string{policies.resource, endpointsKind().resource, "globalgateways"}, append(look, "update")...),
		rule(policies.Group, []string{policies.resource + "/status"}, "get", "patch"),
		rule("", []string{podKind().resource}, look...),
		rule("", []string{secretKind().resource}, "get", "create", "patch", "delete"),
		rule("events.k8s.io", []string{"events"}, "create", "patch"),
		rule(groupDefinitions, []string{definitionKind().resource}, look...),
		rule("discovery.k8s.io", []string{"endpointslices"}, look...), // pickers that pools name
		rule(groupGateway, []string{classKind().resource}, append(look, "create")...),
		rule(poolv1.GroupName, []string{"inferencepools/status"}, "get", "patch"),
	)
	cluster = append(cluster, definitionStatus())
	for i, k := range rewriteKinds() {
		cluster = append(cluster, rule(k.Group, []string{k.resource, objectiveKinds()[i].resource}, look...)) // of the same groups
	}
	groups := make(map[string]int)
	for _, k := range madeKinds() {
		i, there := groups[k.Group]
		if !there {
			i = len(cluster)
			groups[k.Group] = i
			cluster = append(cluster, rule(k.Group, nil, all...))
		}
		if r := cluster[i].Resources; len(r) == 0 || r[len(r)-1] != k.resource {
			cluster[i].Resources = append(r, k.resource)
		}
	}
	own = []rbacv1.PolicyRule{
		rule("coordination.k8s.io", []string{"leases"}, "get", "create", "update", "patch"),
		rule("", []string{secretKind().resource}, "list", "watch"),
	}
	return cluster, own
}

// definitionStatus is the right to say that nothing is stored in an older version of our own kinds any more.
func definitionStatus() rbacv1.PolicyRule {
	r := rbacv1.PolicyRule{APIGroups: []string{groupDefinitions}, Resources: []string{definitionKind().resource + "/status"}, Verbs: []string{"patch", "update"}}
	for _, k := range ownKinds() {
		r.ResourceNames = append(r.ResourceNames, k.plural())
	}
	return r
}

// mayFollow says which right is missing to follow a kind, nothing if none is.
func (c *Controller) mayFollow(ctx context.Context, s *watched) (missing string, err error) {
	for _, verb := range []string{"list", "watch"} {
		yes, err := c.may(ctx, verb, s.kind, s.namespace)
		if err != nil {
			return "", err
		}
		if !yes {
			where := "in the whole cluster"
			if s.namespace != "" {
				where = "in namespace " + s.namespace
			}
			return fmt.Sprintf("%s can't be read, for want of the right to %s %s %s: install the chart of this version, or give it to the controller", s.Kind, verb, s.plural(), where), nil
		}
	}
	return "", nil
}

// may reports whether the controller has a right.
func (c *Controller) may(ctx context.Context, verb string, k kind, namespace string) (bool, error) {
	r := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
		Namespace: namespace, Verb: verb, Group: k.Group, Version: k.Version, Resource: k.resource}}}
	if err := c.client.Create(ctx, r); err != nil {
		return false, fmt.Errorf("cannot ask about the right to %s %s: %w", verb, k.plural(), err)
	}
	return r.Status.Allowed, nil
}

// preflight says in the log which rights are missing to write, once at the beginning of a turn. What they are for is refused
// and said where it is asked for; this is for whoever installs.
func (t *turn) preflight(ctx context.Context) {
	var missing []string
	for _, k := range append(t.kinds(), secretKind()) {
		for _, verb := range []string{"get", "create", "patch", "delete"} {
			yes, err := t.may(ctx, verb, k, "")
			if err != nil {
				t.log.Warn("cannot find out which rights there are", "error", err)
				return
			}
			if !yes {
				missing = append(missing, verb+" "+k.plural())
			}
		}
	}
	if len(missing) > 0 {
		t.log.Warn("rights are missing, and what they are for is not made: install the chart of this version, or give them to the controller", "rights", missing)
	}
}
