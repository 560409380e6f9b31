package magnitude

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"hash/crc32"
	"io"
	"iter"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	magnitudev1 "magnitude.dev/magnitude/v1"
)

const (
	// A message of a state holds so much at most.
	chunkBytes = 1 << 20
	// Save takes so much in one message; more goes in a stream.
	agentStateBytesMax = 4 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Session is what the server keeps under a name: tokens, their key/value cache, and bytes of the application's own.
type Session struct {
	ID string

	client *Client
}

// State is a version of a session, whole: to be kept, or to be brought to another server.
type State struct {
	Header *magnitudev1.StateHeader
	// AgentState are the application's bytes, KeyValue the pages; none where they were not kept.
	AgentState, KeyValue []byte
}

// Session names a session. The first request begins it; what was saved of it comes back by itself.
func (c *Client) Session(id string) *Session {
	return &Session{ID: id, client: c}
}

// In makes a request one of the session: what it holds is put behind what the session has already.
func (s *Session) In() Option {
	return func(r *magnitudev1.InferRequest) { r.SessionId = s.ID }
}

// Save makes a new version of the session, with bytes of any length; nil keeps those of the parent version.
func (s *Session) Save(ctx context.Context, agentState []byte) (*magnitudev1.Snapshot, error) {
	if len(agentState) <= agentStateBytesMax {
		request := &magnitudev1.SaveRequest{SessionId: s.ID, AgentState: agentState}
		answer, err := change(ctx, s.client.attempts, func() (*magnitudev1.SaveResponse, error) {
			return s.client.Snapshots.Save(ctx, request)
		})
		return answer.GetSnapshot(), err
	}
	header := &magnitudev1.ImportStateHeader{Target: &magnitudev1.ImportStateHeader_LiveSessionId{LiveSessionId: s.ID}}
	return s.send(ctx, header, &State{AgentState: agentState})
}

// Restore brings the latest version back.
func (s *Session) Restore(ctx context.Context) (*magnitudev1.RestoreResponse, error) {
	reference := &magnitudev1.SnapshotReference{SessionId: s.ID}
	return s.client.Snapshots.Restore(ctx, &magnitudev1.RestoreRequest{Snapshot: reference})
}

// Delete deletes all versions of the session, and ends it.
func (s *Session) Delete(ctx context.Context) (*magnitudev1.DeleteResponse, error) {
	return change(ctx, s.client.attempts, func() (*magnitudev1.DeleteResponse, error) {
		return s.client.Snapshots.Delete(ctx, &magnitudev1.DeleteRequest{SessionId: s.ID})
	})
}

// Export fetches the latest version. Every byte is checked; what is damaged is an *Error with codes.DataLoss.
func (s *Session) Export(ctx context.Context) (*State, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	reference := &magnitudev1.SnapshotReference{SessionId: s.ID}
	source := &magnitudev1.ExportStateRequest_Snapshot{Snapshot: reference}
	call, err := s.client.Snapshots.ExportState(ctx, &magnitudev1.ExportStateRequest{Source: source})
	if err != nil {
		return nil, err
	}
	state := &State{}
	for {
		part, err := call.Recv()
		if err == io.EOF {
			err = damaged("it ended too soon")
		}
		if err != nil {
			return nil, err
		}
		switch part := part.GetPart().(type) {
		case *magnitudev1.ExportStateResponse_Header:
			state.Header = part.Header
		case *magnitudev1.ExportStateResponse_AgentState:
			err = add(&state.AgentState, part.AgentState)
		case *magnitudev1.ExportStateResponse_KeyValue:
			err = add(&state.KeyValue, part.KeyValue)
		case *magnitudev1.ExportStateResponse_End:
			return state, compare(state, part.End)
		}
		if err != nil {
			return nil, err
		}
	}
}

// Import saves a state as the session's next version. The session need not be live.
func (s *Session) Import(ctx context.Context, state *State) (*magnitudev1.Snapshot, error) {
	target := &magnitudev1.ImportStateHeader_SessionId{SessionId: s.ID}
	return s.send(ctx, &magnitudev1.ImportStateHeader{Target: target, State: state.Header}, state)
}

func (s *Session) send(ctx context.Context, header *magnitudev1.ImportStateHeader, state *State) (
	*magnitudev1.Snapshot, error) {
	return change(ctx, s.client.attempts, func() (*magnitudev1.Snapshot, error) { return s.sendOnce(ctx, header, state) })
}

func (s *Session) sendOnce(ctx context.Context, header *magnitudev1.ImportStateHeader, state *State) (
	*magnitudev1.Snapshot, error) {
	call, err := s.client.Snapshots.ImportState(ctx)
	if err != nil {
		return nil, err
	}
	send := func(request *magnitudev1.ImportStateRequest) {
		if err == nil {
			err = call.Send(request) // io.EOF: refused, and the answer says why
		}
	}
	send(&magnitudev1.ImportStateRequest{Part: &magnitudev1.ImportStateRequest_Header{Header: header}})
	for chunk := range chunks(state.AgentState) {
		send(&magnitudev1.ImportStateRequest{Part: &magnitudev1.ImportStateRequest_AgentState{AgentState: chunk}})
	}
	for chunk := range chunks(state.KeyValue) {
		send(&magnitudev1.ImportStateRequest{Part: &magnitudev1.ImportStateRequest_KeyValue{KeyValue: chunk}})
	}
	send(&magnitudev1.ImportStateRequest{Part: &magnitudev1.ImportStateRequest_End{End: end(state)}})
	answer, err := call.CloseAndRecv()
	return answer.GetSnapshot(), err
}

func chunks(content []byte) iter.Seq[*magnitudev1.StateChunk] {
	return func(yield func(*magnitudev1.StateChunk) bool) {
		for begin := 0; begin < len(content); begin += chunkBytes {
			part := content[begin:min(begin+chunkBytes, len(content))]
			sum := crc32.Checksum(part, castagnoli)
			if !yield(&magnitudev1.StateChunk{OffsetBytes: uint64(begin), Content: part, Crc32C: sum}) {
				return
			}
		}
	}
}

// add appends a chunk, if it comes in its place and whole.
func add(content *[]byte, chunk *magnitudev1.StateChunk) error {
	if chunk.OffsetBytes != uint64(len(*content)) || crc32.Checksum(chunk.Content, castagnoli) != chunk.Crc32C {
		return damaged(fmt.Sprintf("the chunk at %d is wrong", chunk.OffsetBytes))
	}
	*content = append(*content, chunk.Content...)
	return nil
}

// end is what a state must come to.
func end(state *State) *magnitudev1.StateEnd {
	agentState, keyValue := sha256.Sum256(state.AgentState), sha256.Sum256(state.KeyValue)
	return &magnitudev1.StateEnd{
		AgentStateBytes:  uint64(len(state.AgentState)),
		AgentStateSha256: agentState[:],
		KeyValueBytes:    uint64(len(state.KeyValue)),
		KeyValueSha256:   keyValue[:],
	}
}

// compare holds a state against what was sent of it.
func compare(state *State, sent *magnitudev1.StateEnd) error {
	found := end(state)
	if found.AgentStateBytes != sent.AgentStateBytes || found.KeyValueBytes != sent.KeyValueBytes {
		return damaged("its sizes are wrong")
	}
	if len(state.AgentState) > 0 && !bytes.Equal(found.AgentStateSha256, sent.AgentStateSha256) ||
		len(state.KeyValue) > 0 && !bytes.Equal(found.KeyValueSha256, sent.KeyValueSha256) {
		return damaged("its hashes are wrong")
	}
	return nil
}

func damaged(what string) error {
	return typed(status.Error(codes.DataLoss, "The state is damaged: "+what+"."))
}
