package magnitude

import (
	"net"
	"strings"

	"google.golang.org/grpc/resolver"
)

// addresses resolves "ipv4:10.0.0.1:50051,10.0.0.2:50051", as gRPC of other languages does by itself.
type addresses struct{}

func (addresses) Scheme() string { return "ipv4" }

func (addresses) Build(target resolver.Target, connection resolver.ClientConn, _ resolver.BuildOptions) (
	resolver.Resolver, error) {
	var state resolver.State
	for address := range strings.SplitSeq(target.Endpoint(), ",") {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		one := resolver.Address{Addr: address, ServerName: host}
		state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{one}})
	}
	return addresses{}, connection.UpdateState(state)
}

// OverrideAuthority names the servers in calls by the first one.
func (addresses) OverrideAuthority(target resolver.Target) string {
	first, _, _ := strings.Cut(target.Endpoint(), ",")
	return first
}

func (addresses) ResolveNow(resolver.ResolveNowOptions) {}
func (addresses) Close()                                {}
