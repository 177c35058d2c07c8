package kube

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-gateway/sluice/translate"
)

// chartLabel and chartLabelled are what the selector of our chart's Deployment has, and no one else's.
const (
	chartLabel    = "app.kubernetes.io/name"
	chartLabelled = "sluice"
)

// controllers are the Deployments that are called as the controller's is, in all namespaces: those of our chart, and those of others,
// as the reference's.
func (c *Cluster) controllers(ctx context.Context) (ours, others []appsv1.Deployment, err error) {
	var list appsv1.DeploymentList
	if err := c.read(ctx, &list, url.Values{"fieldSelector": {"metadata.name=" + translate.Controller}}, pathApps, "deployments"); err != nil {
		return nil, nil, err
	}
	for i := range list.Items {
		if s := list.Items[i].Spec.Selector; s != nil && s.MatchLabels[chartLabel] == chartLabelled {
			ours = append(ours, list.Items[i])
		} else {
			others = append(others, list.Items[i])
		}
	}
	return ours, others, nil
}

// control finds the controller, and what its chart told it.
func (e *examination) control(ctx context.Context) {
	const what = "controller"
	ours, others, err := e.controllers(ctx)
	if err != nil {
		e.unseen(what, err)
		return
	}
	for i := range others {
		level, d := LevelFail, &others[i]
		if len(ours) > 0 {
			level = LevelWarn
		}
		e.say(level, what, "Deployment %s/%s, image %s, is not Sluice's: its selector lacks %s=%s; a controller of the reference would undo our work, and keeps our chart from being installed in its namespace: switch it off where it comes from, then kubectl -n %s delete deployment %s",
			d.Namespace, d.Name, strings.Join(images(&d.Spec.Template.Spec), " and "), chartLabel, chartLabelled, d.Namespace, d.Name)
	}
	switch len(ours) {
	case 0:
		e.serviceGone = "it comes with our chart, which is to be installed, see the controller above"
		e.say(LevelFail, what, "no Deployment %s of Sluice is in any namespace, and nothing is made of configurations: %s", translate.Controller, e.installing(ctx))
		return
	case 1:
	default:
		e.say(LevelFail, what, "there are %d of them, which undo each other's work: keep one", len(ours))
	}
	d := &ours[0]
	e.controller = d
	e.arguments(d)
	e.rollout(ctx, what, d)
	var services corev1.ServiceList
	if err := e.read(ctx, &services, nil, pathTo(pathCore, d.Namespace, "services")...); err != nil {
		e.unseen("extension server", err)
		return
	}
	for i := range services.Items {
		s := &services.Items[i]
		if slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == "extension" }) && s.Spec.Selector["app"] == d.Name {
			e.service = s.Name + "." + s.Namespace
		}
	}
}

// arguments takes in what the chart told the controller.
func (e *examination) arguments(d *appsv1.Deployment) {
	e.serviceGone = fmt.Sprintf("our chart is installed without one (envoyGateway.extension=false): helm upgrade it in namespace %s with --reset-then-reuse-values --set envoyGateway.extension=true", d.Namespace)
	for _, c := range d.Spec.Template.Spec.Containers {
		for _, arg := range c.Args {
			switch name, value, _ := strings.Cut(arg, "="); name {
			case "--gateway-class":
				e.class = value
			case "--gateway-class-controller":
				e.classMaker = value
			case "--extension":
				e.serviceGone = ""
			}
		}
	}
}

// rollout says how many copies of the controller there are, and where that is not what is wanted, which run, and what keeps the others
// from it: two that are available may be old ones, which a rollout that hangs leaves alone.
func (e *examination) rollout(ctx context.Context, what string, d *appsv1.Deployment) {
	r := rolloutOf(d)
	level, text := LevelOK, fmt.Sprintf("%d of %d copies of %s/%s are available", r.Available, r.Wanted, d.Namespace, d.Name)
	whole := r.Observed && r.Updated >= r.Wanted && d.Status.Replicas <= r.Updated && r.Available >= r.Wanted
	if !whole {
		text += fmt.Sprintf(", %d up to date", r.Updated)
		level = LevelWarn
	}
	text += ", image " + strings.Join(images(&d.Spec.Template.Spec), " and ")
	if !whole {
		if r.Stuck != "" {
			text += "; it goes no further: " + r.Stuck
		}
		text += e.copies(ctx, d)
	}
	if r.Available == 0 {
		level = LevelFail
		text += fmt.Sprintf("; gateways that run go on, and no change is carried out; kubectl -n %s logs deployment/%s", d.Namespace, d.Name)
	}
	e.say(level, what, "%s", text)
}

// copies says which images the ready copies of a Deployment have, and what is wrong with those that are not ready.
func (e *examination) copies(ctx context.Context, d *appsv1.Deployment) (text string) {
	var pods corev1.PodList
	if err := e.read(ctx, &pods, url.Values{"labelSelector": {metav1.FormatLabelSelector(d.Spec.Selector)}}, pathTo(pathCore, d.Namespace, "pods")...); err != nil {
		return fmt.Sprintf("; its pods can't be looked at: %v", err)
	}
	var run, faults []string
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.DeletionTimestamp != nil {
			continue
		}
		if podReady(p) {
			run = append(run, images(&p.Spec)...)
		} else if trouble, _ := containerTrouble(p); trouble != "" {
			faults = append(faults, fmt.Sprintf("; pod %q: %s", p.Name, trouble))
		}
	}
	slices.Sort(run)
	if run = slices.Compact(run); len(run) > 0 {
		text = "; those that are ready run image " + strings.Join(run, " and ")
	}
	return text + strings.Join(faults, "")
}

// images are those of a pod's containers.
func images(s *corev1.PodSpec) []string {
	var list []string
	for _, c := range s.Containers {
		list = append(list, c.Image)
	}
	return list
}

// installing is how to come to a controller where there is none: a release of the chart that does without has to be changed, since there
// can't be a second one of its name.
func (e *examination) installing(ctx context.Context) string {
	namespace := cmp.Or(e.released, translate.DefaultSystemNamespace)
	var list corev1.SecretList
	query := labelled("owner", "helm")
	query.Set("fieldSelector", "type=helm.sh/release.v1")
	if err := e.read(ctx, &list, query, pathTo(pathCore, namespace, "secrets")...); err == nil {
		for i := range list.Items {
			if s := &list.Items[i]; s.Labels["status"] == "deployed" && chartOf(s.Data["release"]) == "sluice" {
				return fmt.Sprintf("the chart is installed without it: helm upgrade %s deploy/chart -n %s --reset-then-reuse-values --set inferenceGateway.enabled=true", s.Labels["name"], namespace)
			}
		}
	}
	return fmt.Sprintf("helm install sluice deploy/chart -n %s --create-namespace", translate.DefaultSystemNamespace)
}

// chartOf is the name of the chart of a release as Helm keeps it, empty where it can't be read.
func chartOf(release []byte) string {
	var r struct {
		Chart struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
		} `json:"chart"`
	}
	if z, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, bytes.NewReader(release))); err == nil {
		_ = json.NewDecoder(z).Decode(&r) // what can't be read is nobody's chart
	}
	return r.Chart.Metadata.Name
}
