package magnitude

import magnitudev1 "magnitude.dev/magnitude/v1"

// Option sets fields of a request. Those below are the common ones; any function will do:
//
//	func(r *magnitudev1.InferRequest) { r.Priority = proto.Int32(5) }
//
// What is absent takes the server's default, which stands beside each field of the contract.
type Option func(*magnitudev1.InferRequest)

// Text is a request to go on with a text.
func Text(text string, options ...Option) *magnitudev1.InferRequest {
	return prepared(&magnitudev1.InferRequest{Input: &magnitudev1.InferRequest_Text{Text: text}}, options)
}

// TokenIDs is a request to go on with tokens.
func TokenIDs(ids []uint32, options ...Option) *magnitudev1.InferRequest {
	tokens := &magnitudev1.TokenIds{Ids: ids}
	return prepared(&magnitudev1.InferRequest{Input: &magnitudev1.InferRequest_TokenIds{TokenIds: tokens}}, options)
}

// Chat is a request for the next message of a chat.
func Chat(messages []*magnitudev1.ChatMessage, options ...Option) *magnitudev1.InferRequest {
	chat := &magnitudev1.ChatInput{Messages: messages}
	return prepared(&magnitudev1.InferRequest{Input: &magnitudev1.InferRequest_Chat{Chat: chat}}, options)
}

func prepared(request *magnitudev1.InferRequest, options []Option) *magnitudev1.InferRequest {
	request.Sampling, request.Stopping = &magnitudev1.SamplingParameters{}, &magnitudev1.StoppingParameters{}
	for _, option := range options {
		option(request)
	}
	return request
}

// System is an instruction.
func System(text string) *magnitudev1.ChatMessage { return message(magnitudev1.Role_ROLE_SYSTEM, text) }

// User is what the person says.
func User(text string) *magnitudev1.ChatMessage { return message(magnitudev1.Role_ROLE_USER, text) }

// Assistant is what the model said.
func Assistant(text string) *magnitudev1.ChatMessage {
	return message(magnitudev1.Role_ROLE_ASSISTANT, text)
}

func message(role magnitudev1.Role, text string) *magnitudev1.ChatMessage {
	part := &magnitudev1.ContentPart{Part: &magnitudev1.ContentPart_Text{Text: text}}
	return &magnitudev1.ChatMessage{Role: role, Content: []*magnitudev1.ContentPart{part}}
}

// Model asks a model by its name, instead of the default one.
func Model(name string) Option {
	return func(r *magnitudev1.InferRequest) { r.Model = name }
}

// MaxTokens ends an answer after so many tokens.
func MaxTokens(count uint32) Option {
	return func(r *magnitudev1.InferRequest) { r.Stopping.MaxTokens = &count }
}

// Stop ends an answer where one of these texts comes.
func Stop(texts ...string) Option {
	return func(r *magnitudev1.InferRequest) { r.Stopping.StopStrings = texts }
}

// Temperature is 0 for the likeliest answer, and higher for more surprising ones.
func Temperature(temperature float32) Option {
	return func(r *magnitudev1.InferRequest) { r.Sampling.Temperature = &temperature }
}

// Seed makes an answer reproducible.
func Seed(seed uint64) Option {
	return func(r *magnitudev1.InferRequest) { r.Sampling.Seed = &seed }
}
