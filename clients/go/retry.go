package magnitude

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	magnitudev1 "magnitude.dev/magnitude/v1"
)

// attemptsMax is how often a call is tried, as in service_config.json.
const attemptsMax = 4

// once keeps gRPC from making a call again once it is sent.
var once = grpc.MaxRetryRPCBufferSize(0)

// change makes a call that changes something: again only where the server refused it for now. An error with a delay
// says that, and that nothing was done. A wait that would not end before the deadline is none: the refusal says more.
func change[Answer any](ctx context.Context, attempts int, call func() (Answer, error)) (answer Answer, err error) {
	for ; ; attempts-- {
		answer, err = call()
		var refusal *Error
		if attempts <= 1 || !errors.As(err, &refusal) || refusal.RetryAfter == 0 {
			return answer, err
		}
		if end, bounded := ctx.Deadline(); bounded && time.Until(end) <= refusal.RetryAfter {
			return answer, err
		}
		select {
		case <-time.After(refusal.RetryAfter):
		case <-ctx.Done():
			return answer, typed(status.FromContextError(ctx.Err()).Err())
		}
	}
}

// attemptsOf is how often a request of a session is tried. What fails in saving it afterwards fails when the session has
// the answer already: whether there was one cannot be told, so that such a request is never made again.
func (c *Client) attemptsOf(request *magnitudev1.InferRequest) int {
	if request.GetSnapshotAfterwards() != nil {
		return 1
	}
	return c.attempts
}
