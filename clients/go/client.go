// Package magnitude talks to a Magnitude server: plain arguments in, the contract's messages out.
//
//	client, err := magnitude.Dial("127.0.0.1:50051")
//	…
//	defer client.Close()
//	stream := client.Stream(ctx, magnitude.Text("Once upon a time", magnitude.MaxTokens(64)))
//	for text, err := range stream.Texts() {
//		…
//	}
//
// Deadlines and cancellation are the context's. Calls are made again as clients/README.md says. Every error of a call is
// an *Error.
package magnitude

import (
	"context"
	"crypto/tls"
	_ "embed"
	"math"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	magnitudev1 "magnitude.dev/magnitude/v1"
)

// serviceConfig has the retries as gRPC does them, and spreads calls over all addresses of a name. The server's
// pushback says how long to wait, or that it is of no use.
//
//go:embed service_config.json
var serviceConfig string

// Client is a connection to one server, or to all that a name stands for. Goroutines may share it.
type Client struct {
	// The generated stubs: every rpc is within reach. Their errors are *Error too.
	Inference magnitudev1.InferenceServiceClient
	Models    magnitudev1.ModelServiceClient
	Health    magnitudev1.HealthServiceClient
	Snapshots magnitudev1.SnapshotServiceClient

	connection *grpc.ClientConn
	attempts   int
}

// DialOption says how to connect.
type DialOption func(*dialing)

type dialing struct {
	transport credentials.TransportCredentials
	options   []grpc.DialOption
	attempts  int
}

// WithTLS encrypts the connection. A nil configuration trusts the system's authorities; for mutual TLS it has the
// client's certificate.
func WithTLS(configuration *tls.Config) DialOption {
	return func(d *dialing) { d.transport = credentials.NewTLS(configuration) }
}

// WithToken sends a bearer token with every call. It needs TLS: Dial refuses it otherwise.
func WithToken(token string) DialOption {
	return WithGRPC(grpc.WithPerRPCCredentials(bearer(token)))
}

// WithoutRetries returns a refusal that would pass at once, with how long to wait.
func WithoutRetries() DialOption {
	return func(d *dialing) { d.options, d.attempts = append(d.options, grpc.WithDisableRetry()), 1 }
}

// WithGRPC adds options of gRPC's own: keepalive, proxies, interceptors.
func WithGRPC(options ...grpc.DialOption) DialOption {
	return func(d *dialing) { d.options = append(d.options, options...) }
}

// Dial makes a client of an address: "host:port", "ipv4:10.0.0.1:50051,10.0.0.2:50051", "dns:///name:port", or any other
// name that gRPC resolves. It connects when it is first used.
func Dial(address string, options ...DialOption) (*Client, error) {
	d := dialing{transport: insecure.NewCredentials(), attempts: attemptsMax}
	for _, option := range options {
		option(&d)
	}
	connection, err := grpc.NewClient(address, append([]grpc.DialOption{
		grpc.WithTransportCredentials(d.transport),
		grpc.WithDefaultServiceConfig(serviceConfig),
		grpc.WithResolvers(addresses{}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)),
		grpc.WithChainUnaryInterceptor(typedUnaryErrors),
		grpc.WithChainStreamInterceptor(typedStreamErrors),
	}, d.options...)...)
	if err != nil {
		return nil, err
	}
	return &Client{
		Inference:  magnitudev1.NewInferenceServiceClient(connection),
		Models:     magnitudev1.NewModelServiceClient(connection),
		Health:     magnitudev1.NewHealthServiceClient(connection),
		Snapshots:  magnitudev1.NewSnapshotServiceClient(connection),
		connection: connection,
		attempts:   d.attempts,
	}, nil
}

// Infer returns the whole answer.
func (c *Client) Infer(ctx context.Context, request *magnitudev1.InferRequest) (*magnitudev1.InferResponse, error) {
	if request.GetSessionId() == "" {
		return c.Inference.Infer(ctx, request)
	}
	return change(ctx, c.attemptsOf(request), func() (*magnitudev1.InferResponse, error) {
		return c.Inference.Infer(ctx, request, once)
	})
}

// Close ends the connection; open calls are cancelled.
func (c *Client) Close() error {
	return c.connection.Close()
}

// bearer is a token as gRPC's per-call credentials.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

func (bearer) RequireTransportSecurity() bool { return true }
