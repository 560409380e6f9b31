// Conformance runs the scenarios of tests/conformance against a server: conformance [flags] ADDRESS SCENARIOS.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"magnitude.dev/magnitude"
	magnitudev1 "magnitude.dev/magnitude/v1"
)

type scenario struct {
	Name, Kind                                   string
	Request, Held                                request
	Says                                         []string
	AfterDeltas, Hold, TimeoutMs, ReleaseAfterMs int
	AgentStateBytes                              int
	Expect                                       expected
}

type expected struct {
	Text                          *string
	FinishReason                  string
	CompletionTokens              uint32
	DeltasMin, Messages           int
	Code, Reason, Field, Fidelity string
	Models                        []string
}

// request is an InferRequest in JSON, as protobuf writes it.
type request struct{ magnitudev1.InferRequest }

func (r *request) UnmarshalJSON(text []byte) error { return protojson.Unmarshal(text, &r.InferRequest) }

// kinds has what each kind of scenario does; patient tries again where the server says so, hasty does not.
var kinds = map[string]func(ctx context.Context, patient, hasty *magnitude.Client, s *scenario) error{
	"unary":        unary,
	"stream":       stream,
	"conversation": conversation,
	"cancel":       cancel,
	"deadline":     deadline,
	"refused":      refused,
	"rejected":     rejected,
	"balanced":     balanced,
	"repeated":     repeated,
	"lost":         lost,
	"exhausted":    exhausted,
	"retried":      retried,
	"session":      session,
	"snapshot":     snapshot,
}

func main() {
	authorities := flag.String("ca", "", "certificates to trust, in PEM: TLS")
	certificate := flag.String("certificate", "", "the caller's certificate, in PEM: mutual TLS")
	key := flag.String("key", "", "the certificate's key")
	token := flag.String("token", "", "bearer token")
	flag.Parse()
	if flag.NArg() != 2 {
		fmt.Fprintln(os.Stderr, "conformance [--ca FILE] [--certificate FILE --key FILE] [--token TOKEN] ADDRESS SCENARIOS")
		os.Exit(64)
	}
	options := dialOptions(*authorities, *certificate, *key, *token)
	patient, err := magnitude.Dial(flag.Arg(0), options...)
	check(err)
	hasty, err := magnitude.Dial(flag.Arg(0), append(options, magnitude.WithoutRetries())...)
	check(err)
	text, err := os.ReadFile(flag.Arg(1))
	check(err)
	var scenarios []*scenario
	check(json.Unmarshal(text, &scenarios))
	failed := false
	for _, s := range scenarios {
		begin := time.Now()
		err := fmt.Errorf("this client has no scenarios of kind %q", s.Kind)
		if run, ok := kinds[s.Kind]; ok {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			if err = run(ctx, patient, hasty, s); err == nil && s.Kind != "rejected" {
				err = idle(ctx, hasty)
			}
			cancel()
		}
		if err != nil {
			failed = true
			fmt.Printf("FAILED %s: %v\n", s.Name, err)
		} else {
			fmt.Printf("ok %s (%d ms)\n", s.Name, time.Since(begin).Milliseconds())
		}
	}
	if failed {
		os.Exit(1)
	}
}

func dialOptions(authorities, certificate, key, token string) (options []magnitude.DialOption) {
	if authorities != "" {
		pem, err := os.ReadFile(authorities)
		check(err)
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(pem)
		configuration := &tls.Config{RootCAs: pool}
		if certificate != "" {
			pair, err := tls.LoadX509KeyPair(certificate, key)
			check(err)
			configuration.Certificates = []tls.Certificate{pair}
		}
		options = append(options, magnitude.WithTLS(configuration))
	}
	if token != "" {
		options = append(options, magnitude.WithToken(token))
	}
	return options
}

func unary(ctx context.Context, patient, _ *magnitude.Client, s *scenario) error {
	answer, err := patient.Infer(ctx, &s.Request.InferRequest)
	if err != nil {
		return err
	}
	choice := answer.Choices[0]
	for name, value := range s.Request.Metadata {
		if answer.Metadata[name] != value {
			return fmt.Errorf("metadata %q is %q", name, answer.Metadata[name])
		}
	}
	return s.Expect.answer(choice.Text, choice.End, answer.Usage)
}

func stream(ctx context.Context, patient, _ *magnitude.Client, s *scenario) error {
	whole, err := patient.Infer(ctx, &s.Request.InferRequest)
	if err != nil {
		return err
	}
	var deltas []string
	stream := patient.Stream(ctx, &s.Request.InferRequest)
	for text, err := range stream.Texts() {
		if err != nil {
			return err
		}
		if stream.Started == nil || stream.Finished != nil {
			return errors.New("a delta before `started` or after `finished`")
		}
		deltas = append(deltas, text)
	}
	if stream.Finished == nil {
		return errors.New("the stream ended without `finished`")
	}
	text := strings.Join(deltas, "")
	if text != whole.Choices[0].Text {
		return fmt.Errorf("the deltas come to %q, the whole answer is %q", text, whole.Choices[0].Text)
	}
	if len(deltas) < s.Expect.DeltasMin {
		return fmt.Errorf("%d deltas", len(deltas))
	}
	return s.Expect.answer(text, stream.Finished.Ends[0], stream.Finished.Usage)
}

func conversation(ctx context.Context, patient, _ *magnitude.Client, s *scenario) error {
	messages := []*magnitudev1.ChatMessage{magnitude.System("Be brief.")}
	chat := patient.Conversation(messages, func(r *magnitudev1.InferRequest) { proto.Merge(r, &s.Request.InferRequest) })
	for _, text := range s.Says {
		answer, err := chat.Say(ctx, text)
		if err != nil {
			return err
		}
		if answer != *s.Expect.Text {
			return fmt.Errorf("the answer is %q", answer)
		}
	}
	if len(chat.Messages) != s.Expect.Messages {
		return fmt.Errorf("%d messages", len(chat.Messages))
	}
	return nil
}

func cancel(ctx context.Context, _, hasty *magnitude.Client, s *scenario) error {
	count := 0
	for _, err := range hasty.Stream(ctx, &s.Request.InferRequest).Texts() {
		if err != nil {
			return err
		}
		if count++; count == s.AfterDeltas {
			break
		}
	}
	if err := idle(ctx, hasty); err != nil {
		return fmt.Errorf("after leaving the loop: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for _, err := range hasty.Stream(ctx, &s.Request.InferRequest).Texts() {
		if err != nil {
			if !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		}
		stop()
	}
	return errors.New("the cancelled stream ended without an error")
}

func deadline(ctx context.Context, _, hasty *magnitude.Client, s *scenario) error {
	timeout := time.Duration(s.TimeoutMs) * time.Millisecond
	whole, cancelWhole := context.WithTimeout(ctx, timeout)
	defer cancelWhole()
	_, err := hasty.Infer(whole, &s.Request.InferRequest)
	if !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("not errors.Is DeadlineExceeded: %v", err)
	}
	streamed, cancelStreamed := context.WithTimeout(ctx, timeout)
	defer cancelStreamed()
	return errors.Join(
		s.Expect.failure(err, ""),
		s.Expect.failure(streamError(streamed, hasty, &s.Request.InferRequest), ""),
	)
}

func refused(ctx context.Context, patient, _ *magnitude.Client, s *scenario) error {
	_, err := patient.Infer(ctx, &s.Request.InferRequest)
	return errors.Join(
		s.Expect.failure(err, ""),
		s.Expect.failure(streamError(ctx, patient, &s.Request.InferRequest), "request."),
	)
}

func rejected(ctx context.Context, _, hasty *magnitude.Client, s *scenario) error {
	_, err := hasty.Infer(ctx, &s.Request.InferRequest)
	return errors.Join(
		s.Expect.failure(err, ""),
		s.Expect.failure(streamError(ctx, hasty, &s.Request.InferRequest), ""),
	)
}

func balanced(ctx context.Context, patient, _ *magnitude.Client, s *scenario) error {
	answered := map[string]bool{}
	for end := time.Now().Add(10 * time.Second); len(answered) < len(s.Expect.Models); {
		answer, err := patient.Infer(ctx, &s.Request.InferRequest)
		if err != nil {
			return err
		}
		if !slices.Contains(s.Expect.Models, answer.Model) {
			return fmt.Errorf("%q answered", answer.Model)
		}
		answered[answer.Model] = true
		if time.Now().After(end) {
			return fmt.Errorf("all answers are from %v", answered)
		}
	}
	return nil
}

func repeated(ctx context.Context, patient, _ *magnitude.Client, s *scenario) error {
	session, brought := newSession(patient), newSession(patient)
	request := proto.CloneOf(&s.Request.InferRequest)
	session.In()(request)
	steps := []func() error{
		func() error { return reads(ctx, patient, s) },
		func() error { return s.Expect.said(patient.Infer(ctx, request)) },
		func() error { return streamError(ctx, patient, request) },
		func() error { return failed(session.Save(ctx, []byte("state"))) },
		func() error { return versions(ctx, patient, session, 1) },
		func() error { return failed(session.Restore(ctx)) },
		func() error {
			state, err := session.Export(ctx)
			if err != nil {
				return err
			}
			return failed(brought.Import(ctx, state))
		},
		func() error { return failed(session.Delete(ctx)) },
		func() error { return failed(brought.Delete(ctx)) },
	}
	return inOrder(steps)
}

func lost(ctx context.Context, patient, _ *magnitude.Client, s *scenario) error {
	session, brought := newSession(patient), newSession(patient)
	request := proto.CloneOf(&s.Request.InferRequest)
	session.In()(request)
	var state *magnitude.State
	steps := []func() error{
		func() error { return reads(ctx, patient, s) },
		func() error { return s.Expect.failure(failed(patient.Infer(ctx, request)), "") },
		func() error { return s.Expect.failure(streamError(ctx, patient, request), "") },
		func() error { return s.Expect.failure(failed(session.Save(ctx, nil)), "") },
		func() error { return versions(ctx, patient, session, 1) },
		func() error { return failed(session.Restore(ctx)) },
		func() (err error) { state, err = session.Export(ctx); return err },
		func() error { return s.Expect.failure(failed(brought.Import(ctx, state)), "") },
		func() error { return versions(ctx, patient, brought, 1) },
		func() error { return s.Expect.failure(failed(session.Delete(ctx)), "") },
		func() error { return versions(ctx, patient, session, 0) },
	}
	return inOrder(steps)
}

// inOrder takes one step after the other until one fails.
func inOrder(steps []func() error) error {
	for number, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("step %d: %w", number, err)
		}
	}
	return nil
}

// reads makes each call that changes nothing.
func reads(ctx context.Context, client *magnitude.Client, s *scenario) error {
	_, unhealthy := client.Health.Health(ctx, &magnitudev1.HealthRequest{})
	_, unlisted := client.Models.ListModels(ctx, &magnitudev1.ListModelsRequest{})
	text := &magnitudev1.TokenizeRequest{Input: &magnitudev1.TokenizeRequest_Text{Text: "hello"}}
	_, uncounted := client.Inference.Tokenize(ctx, text)
	unsaid := s.Expect.said(client.Infer(ctx, &s.Request.InferRequest))
	return errors.Join(unhealthy, unlisted, uncounted, unsaid, streamError(ctx, client, &s.Request.InferRequest))
}

// versions fails unless a session has so many.
func versions(ctx context.Context, client *magnitude.Client, session *magnitude.Session, count int) error {
	request := &magnitudev1.ListRequest{SessionId: session.ID, AllVersions: true}
	found, err := client.Snapshots.List(ctx, request)
	if err == nil && len(found.Snapshots) != count {
		return fmt.Errorf("%d versions", len(found.Snapshots))
	}
	return err
}

// failed is the error of a call whose answer is of no interest.
func failed[Answer any](_ Answer, err error) error { return err }

func exhausted(ctx context.Context, patient, hasty *magnitude.Client, s *scenario) error {
	release, err := hold(ctx, patient, s)
	defer release()
	if err != nil {
		return err
	}
	_, err = hasty.Infer(ctx, &s.Request.InferRequest)
	if failure := new(magnitude.Error); errors.As(err, &failure) && failure.RetryAfter <= 0 {
		return errors.New("no delay to wait for")
	}
	return s.Expect.failure(err, "")
}

func retried(ctx context.Context, patient, hasty *magnitude.Client, s *scenario) error {
	release, err := hold(ctx, patient, s)
	defer release()
	if err != nil {
		return err
	}
	if _, err := hasty.Infer(ctx, &s.Request.InferRequest); err == nil {
		return errors.New("the queue is not full")
	}
	time.AfterFunc(time.Duration(s.ReleaseAfterMs)*time.Millisecond, release)
	return unary(ctx, patient, hasty, s)
}

func session(ctx context.Context, patient, _ *magnitude.Client, s *scenario) error {
	session := newSession(patient)
	defer forget(ctx, session)
	if _, err := say(ctx, patient, session, s, 0); err != nil {
		return err
	}
	if saved, err := session.Save(ctx, nil); err != nil || saved.Version != 1 {
		return fmt.Errorf("saved: %v, %w", saved, err)
	}
	first, err := say(ctx, patient, session, s, 1)
	if err != nil {
		return err
	}
	return goesOn(ctx, patient, session, s, first)
}

func snapshot(ctx context.Context, patient, _ *magnitude.Client, s *scenario) error {
	session, brought := newSession(patient), newSession(patient)
	defer forget(ctx, session)
	defer forget(ctx, brought)
	agentState := make([]byte, s.AgentStateBytes)
	for i := range agentState {
		agentState[i] = byte(i % 251)
	}
	if _, err := say(ctx, patient, session, s, 0); err != nil {
		return err
	}
	saved, err := session.Save(ctx, agentState)
	if err != nil || saved.AgentStateBytes != uint64(s.AgentStateBytes) {
		return fmt.Errorf("saved: %v, %w", saved, err)
	}
	state, err := session.Export(ctx)
	if err != nil || !bytes.Equal(state.AgentState, agentState) || len(state.KeyValue) == 0 {
		return fmt.Errorf("not what was saved: %w", err)
	}
	if _, err := brought.Import(ctx, state); err != nil {
		return err
	}
	first, err := say(ctx, patient, session, s, 1)
	if err != nil {
		return err
	}
	return goesOn(ctx, patient, brought, s, first)
}

// goesOn restores a session; it says again what it said first.
func goesOn(ctx context.Context, client *magnitude.Client, session *magnitude.Session, s *scenario, first string) error {
	restored, err := session.Restore(ctx)
	if err != nil || restored.Fidelity.String() != s.Expect.Fidelity {
		return fmt.Errorf("restored: %v, %w", restored.GetFidelity(), err)
	}
	again, err := say(ctx, client, session, s, 1)
	if err == nil && again != first {
		return fmt.Errorf("it goes on with %q, not with %q", again, first)
	}
	return err
}

func say(ctx context.Context, client *magnitude.Client, session *magnitude.Session, s *scenario, index int) (
	string, error) {
	merge := func(r *magnitudev1.InferRequest) { proto.Merge(r, &s.Request.InferRequest) }
	answer, err := client.Infer(ctx, magnitude.Text(s.Says[index], merge, session.In()))
	if err != nil {
		return "", err
	}
	return answer.Choices[0].Text, nil
}

func newSession(client *magnitude.Client) *magnitude.Session {
	return client.Session("conformance/go/" + rand.Text())
}

func forget(ctx context.Context, session *magnitude.Session) {
	session.Delete(ctx)
}

// hold fills the server with streams that go on until they are released.
func hold(ctx context.Context, client *magnitude.Client, s *scenario) (release context.CancelFunc, err error) {
	ctx, release = context.WithCancel(ctx)
	for range s.Hold {
		call, err := client.Inference.StreamInfer(ctx, &magnitudev1.StreamInferRequest{Request: &s.Held.InferRequest})
		if err != nil {
			return release, err
		}
		if _, err := call.Recv(); err != nil {
			return release, err
		}
	}
	return release, nil
}

// idle waits until the server has nothing to do: what was cancelled has ended there too.
func idle(ctx context.Context, client *magnitude.Client) error {
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		answer, err := client.Inference.GetLoad(ctx, &magnitudev1.GetLoadRequest{})
		if err != nil {
			return err
		}
		if answer.Load.RunningRequests == 0 && answer.Load.WaitingRequests == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("the server is still busy: %v", answer.Load)
		}
	}
}

func streamError(ctx context.Context, client *magnitude.Client, request *magnitudev1.InferRequest) error {
	for _, err := range client.Stream(ctx, request).Events() {
		if err != nil {
			return err
		}
	}
	return nil
}

func (e *expected) answer(text string, end *magnitudev1.ChoiceEnd, usage *magnitudev1.Usage) error {
	switch {
	case e.Text != nil && text != *e.Text:
		return fmt.Errorf("the text is %q", text)
	case end.FinishReason.String() != e.FinishReason:
		return fmt.Errorf("it ended for %s", end.FinishReason)
	case usage.CompletionTokens != e.CompletionTokens:
		return fmt.Errorf("%d tokens", usage.CompletionTokens)
	}
	return nil
}

// said fails unless an answer is the text.
func (e *expected) said(answer *magnitudev1.InferResponse, err error) error {
	if err == nil && answer.Choices[0].Text != *e.Text {
		return fmt.Errorf("the text is %q", answer.Choices[0].Text)
	}
	return err
}

func (e *expected) failure(err error, prefix string) error {
	var failure *magnitude.Error
	if !errors.As(err, &failure) {
		return fmt.Errorf("not a *magnitude.Error: %v", err)
	}
	var code codes.Code
	check(code.UnmarshalJSON([]byte(`"` + e.Code + `"`)))
	if failure.Code != code || failure.Reason != e.Reason && e.Reason != "" {
		return fmt.Errorf("%s %s: %w", failure.Code, failure.Reason, err)
	}
	fields := make([]string, 0, 1)
	for field := range failure.FieldViolations {
		fields = append(fields, field)
	}
	if e.Field != "" && !slices.Contains(fields, prefix+e.Field) {
		return fmt.Errorf("fields at fault: %q", fields)
	}
	return nil
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(70)
	}
}
