package kube

import (
	"context"
	"fmt"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/grpc"
)

// extensionService is what Envoy Gateway calls.
const extensionService = "envoygateway.extension.EnvoyGatewayExtension"

// The messages of Envoy Gateway's extension API, as far as they are read or written here: numbers and types are on the
// fields, and the library for protocol buffers makes descriptors of them. Envoy Gateway's own module has generated ones, and
// asks for versions of Envoy's types that would be forced on everything else; a test holds these against its definitions.

type extensionResource struct {
	JSON []byte `protobuf:"bytes,1,opt,name=unstructured_bytes,proto3"`
}

type routeContext struct {
	Resources []*extensionResource `protobuf:"bytes,1,rep,name=extension_resources,proto3"`
}

type routeRequest struct {
	Route   *routev3.Route `protobuf:"bytes,1,opt,name=route,proto3"`
	Context *routeContext  `protobuf:"bytes,2,opt,name=post_route_context,proto3"`
}

type routeAnswer struct {
	Route *routev3.Route `protobuf:"bytes,1,opt,name=route,proto3"`
}

type translateRequest struct {
	Clusters  []*clusterv3.Cluster          `protobuf:"bytes,2,rep,name=clusters,proto3"`
	Secrets   []*tlsv3.Secret               `protobuf:"bytes,3,rep,name=secrets,proto3"`
	Listeners []*listenerv3.Listener        `protobuf:"bytes,4,rep,name=listeners,proto3"`
	Routes    []*routev3.RouteConfiguration `protobuf:"bytes,5,rep,name=routes,proto3"`
}

type translateAnswer struct {
	Clusters  []*clusterv3.Cluster          `protobuf:"bytes,1,rep,name=clusters,proto3"`
	Secrets   []*tlsv3.Secret               `protobuf:"bytes,2,rep,name=secrets,proto3"`
	Listeners []*listenerv3.Listener        `protobuf:"bytes,3,rep,name=listeners,proto3"`
	Routes    []*routev3.RouteConfiguration `protobuf:"bytes,4,rep,name=routes,proto3"`
}

func (m *extensionResource) Reset()         { *m = extensionResource{} }
func (m *extensionResource) String() string { return string(m.JSON) }
func (m *extensionResource) ProtoMessage()  {}
func (m *routeContext) Reset()              { *m = routeContext{} }
func (m *routeContext) String() string      { return fmt.Sprint(m.Resources) }
func (m *routeContext) ProtoMessage()       {}
func (m *routeRequest) Reset()              { *m = routeRequest{} }
func (m *routeRequest) String() string      { return fmt.Sprint(m.Route, m.Context) }
func (m *routeRequest) ProtoMessage()       {}
func (m *routeAnswer) Reset()               { *m = routeAnswer{} }
func (m *routeAnswer) String() string       { return fmt.Sprint(m.Route) }
func (m *routeAnswer) ProtoMessage()        {}
func (m *translateRequest) Reset()          { *m = translateRequest{} }
func (m *translateRequest) String() string  { return fmt.Sprint(m.Clusters, m.Listeners, m.Routes) }
func (m *translateRequest) ProtoMessage()   {}
func (m *translateAnswer) Reset()           { *m = translateAnswer{} }
func (m *translateAnswer) String() string   { return fmt.Sprint(m.Clusters, m.Listeners, m.Routes) }
func (m *translateAnswer) ProtoMessage()    {}

// hook is one method of the service.
func hook[Q, A any](name string, answer func(context.Context, *Q) (*A, error)) grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: name, Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		q := new(Q)
		if err := decode(q); err != nil {
			return nil, err
		}
		return answer(ctx, q)
	}}
}
