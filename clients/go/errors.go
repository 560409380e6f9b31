package magnitude

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Error is what a call failed with. errors.Is finds context.DeadlineExceeded and context.Canceled in it.
type Error struct {
	// Code is the gRPC status.
	Code codes.Code
	// Message says what was found, what is allowed, and what to do.
	Message string
	// Reason is the server's word for it ("CONTEXT_LENGTH_EXCEEDED"); empty if it did not come from the server.
	Reason string
	// Details are the parts of the message by name.
	Details map[string]string
	// FieldViolations has the paths of fields at fault, with what is wrong.
	FieldViolations map[string]string
	// RetryAfter is how long to wait; 0 where waiting does not help.
	RetryAfter time.Duration

	status *status.Status
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s", e.Code, e.Message) }

// GRPCStatus lets status.FromError and status.Code see the status.
func (e *Error) GRPCStatus() *status.Status { return e.status }

// Is tells the errors of contexts from others.
func (e *Error) Is(target error) bool {
	return e.Code == codes.DeadlineExceeded && target == context.DeadlineExceeded ||
		e.Code == codes.Canceled && target == context.Canceled
}

// typed is the *Error of any error of a call; nil and io.EOF stay what they are.
func typed(err error) error {
	var known *Error
	if err == nil || err == io.EOF || errors.As(err, &known) {
		return err
	}
	failed := status.Convert(err)
	made := &Error{Code: failed.Code(), Message: failed.Message(), status: failed}
	for _, detail := range failed.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			made.Reason, made.Details = detail.GetReason(), detail.GetMetadata()
		case *errdetails.RetryInfo:
			made.RetryAfter = detail.GetRetryDelay().AsDuration()
		case *errdetails.BadRequest:
			made.FieldViolations = map[string]string{}
			for _, violation := range detail.GetFieldViolations() {
				made.FieldViolations[violation.GetField()] = violation.GetDescription()
			}
		}
	}
	return made
}

func typedUnaryErrors(ctx context.Context, method string, request, reply any, connection *grpc.ClientConn,
	invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	return typed(invoke(ctx, method, request, reply, connection, options...))
}

func typedStreamErrors(ctx context.Context, description *grpc.StreamDesc, connection *grpc.ClientConn, method string,
	begin grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := begin(ctx, description, connection, method, options...)
	if err != nil {
		return nil, typed(err)
	}
	return typedStream{stream}, nil
}

// typedStream is a stream whose errors are *Error.
type typedStream struct{ grpc.ClientStream }

func (s typedStream) SendMsg(message any) error { return typed(s.ClientStream.SendMsg(message)) }
func (s typedStream) RecvMsg(message any) error { return typed(s.ClientStream.RecvMsg(message)) }
