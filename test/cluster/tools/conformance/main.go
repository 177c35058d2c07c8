// Command conformance is the Inference Extension's own tests of gateways, as a program: where it runs, a cluster is all it needs.
//
//	conformance -gateway-class conformance -report-output report.yaml -test.v
package main

import (
	"regexp"
	"testing"

	"sigs.k8s.io/gateway-api-inference-extension/conformance"
)

func main() {
	testing.Main(regexp.MatchString, []testing.InternalTest{{Name: "TestConformance", F: conformance.RunConformance}}, nil, nil)
}
