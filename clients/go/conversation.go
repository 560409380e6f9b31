package magnitude

import (
	"context"
	"iter"
	"strings"

	magnitudev1 "magnitude.dev/magnitude/v1"
)

// Conversation is a chat whose messages are kept here and sent with each question; what the server has computed of them
// already it does not compute again.
type Conversation struct {
	// Messages are what was said so far.
	Messages []*magnitudev1.ChatMessage

	client  *Client
	options []Option
}

// Conversation begins with some messages, often one of the system's. The options are those of every answer.
func (c *Client) Conversation(messages []*magnitudev1.ChatMessage, options ...Option) *Conversation {
	return &Conversation{Messages: messages, client: c, options: options}
}

// Say asks something and returns the answer.
func (c *Conversation) Say(ctx context.Context, text string) (string, error) {
	var answer strings.Builder
	for part, err := range c.Stream(ctx, text) {
		if err != nil {
			return "", err
		}
		answer.WriteString(part)
	}
	return answer.String(), nil
}

// Stream asks something; the answer comes in parts. Question and answer become messages when it is complete: one that
// fails, or is left early, was not said.
func (c *Conversation) Stream(ctx context.Context, text string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		asked := append(c.Messages[:len(c.Messages):len(c.Messages)], User(text))
		var answer strings.Builder
		for part, err := range c.client.Stream(ctx, Chat(asked, c.options...)).Texts() {
			answer.WriteString(part)
			if !yield(part, err) || err != nil {
				return
			}
		}
		c.Messages = append(asked, Assistant(answer.String()))
	}
}
