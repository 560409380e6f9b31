package magnitude

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

func TestAnErrorIsReadFromItsDetails(t *testing.T) {
	failed, err := status.New(codes.ResourceExhausted, "m").WithDetails(
		&errdetails.ErrorInfo{Reason: "QUEUE_FULL", Metadata: map[string]string{"waiting_max": "8"}},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(1500 * time.Millisecond)},
		&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "a.b", Description: "why"}}},
	)
	if err != nil {
		t.Fatal(err)
	}
	var found *Error
	if !errors.As(typed(failed.Err()), &found) {
		t.Fatal("not an *Error")
	}
	if found.Reason != "QUEUE_FULL" || found.Details["waiting_max"] != "8" || found.FieldViolations["a.b"] != "why" ||
		found.RetryAfter != 1500*time.Millisecond || status.Code(found) != codes.ResourceExhausted {
		t.Errorf("%+v", found)
	}
}

func TestErrorsOfContextsAreFoundInErrorsOfCalls(t *testing.T) {
	late, gone := typed(status.Error(codes.DeadlineExceeded, "")), typed(status.Error(codes.Canceled, ""))
	if !errors.Is(late, context.DeadlineExceeded) || !errors.Is(gone, context.Canceled) {
		t.Error(late, gone)
	}
	if errors.Is(late, context.Canceled) || errors.Is(gone, context.DeadlineExceeded) {
		t.Error("each is the other too")
	}
}

func TestATokenIsNotSentInTheClear(t *testing.T) {
	if _, err := Dial("127.0.0.1:1", WithToken("secret")); err == nil {
		t.Error("a token without TLS was accepted")
	}
	client, err := Dial("127.0.0.1:1", WithToken("secret"), WithTLS(nil))
	if err != nil {
		t.Fatal(err)
	}
	client.Close()
}

func TestNobodyAtTheAddressIsUnavailable(t *testing.T) {
	client, err := Dial("127.0.0.1:1", WithoutRetries())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var found *Error
	if _, err = client.Infer(context.Background(), Text("x")); !errors.As(err, &found) || found.Code != codes.Unavailable {
		t.Error(err)
	}
}
