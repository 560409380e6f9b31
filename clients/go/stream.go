package magnitude

import (
	"context"
	"io"
	"iter"

	"google.golang.org/grpc"

	magnitudev1 "magnitude.dev/magnitude/v1"
)

// Stream is a streamed answer. It begins when it is ranged over, which can be done once; leaving the loop early ends
// the request at the server.
type Stream struct {
	// Started and Finished are set as these events pass.
	Started  *magnitudev1.StreamStarted
	Finished *magnitudev1.StreamFinished

	ctx     context.Context
	client  *Client
	request *magnitudev1.StreamInferRequest
}

// Stream is the answer as it comes.
func (c *Client) Stream(ctx context.Context, request *magnitudev1.InferRequest) *Stream {
	return &Stream{ctx: ctx, client: c, request: &magnitudev1.StreamInferRequest{Request: request}}
}

// Events are all events. An error is the last thing that comes.
func (s *Stream) Events() iter.Seq2[*magnitudev1.StreamInferResponse, error] {
	return func(yield func(*magnitudev1.StreamInferResponse, error) bool) {
		ctx, cancel := context.WithCancel(s.ctx)
		defer cancel()
		call, event, err := s.begin(ctx)
		for ; err != io.EOF; event, err = call.Recv() {
			if err != nil {
				yield(nil, err)
				return
			}
			switch event := event.GetEvent().(type) {
			case *magnitudev1.StreamInferResponse_Started:
				s.Started = event.Started
			case *magnitudev1.StreamInferResponse_Finished:
				s.Finished = event.Finished
			}
			if !yield(event, nil) {
				return
			}
		}
	}
}

// begin makes the call and waits for its first event: until then it may be refused.
func (s *Stream) begin(ctx context.Context) (
	call grpc.ServerStreamingClient[magnitudev1.StreamInferResponse], event *magnitudev1.StreamInferResponse, err error) {
	attempts, options := 1, []grpc.CallOption(nil)
	if request := s.request.GetRequest(); request.GetSessionId() != "" {
		attempts, options = s.client.attemptsOf(request), []grpc.CallOption{once}
	}
	event, err = change(ctx, attempts, func() (*magnitudev1.StreamInferResponse, error) {
		if call, err = s.client.Inference.StreamInfer(ctx, s.request, options...); err != nil {
			return nil, err
		}
		return call.Recv()
	})
	return call, event, err
}

// Texts is the text of the first choice, as it comes.
func (s *Stream) Texts() iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for event, err := range s.Events() {
			delta := event.GetDelta()
			if err == nil && (delta.GetText() == "" || delta.GetIndex() != 0) {
				continue
			}
			if !yield(delta.GetText(), err) {
				return
			}
		}
	}
}
