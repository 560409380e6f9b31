// Stream prints an answer as it comes: go run ./examples/stream [-address HOST:PORT] [PROMPT]
package main

import (
	"context"
	"flag"
	"fmt"
	"log"

	"magnitude.dev/magnitude"
	magnitudev1 "magnitude.dev/magnitude/v1"
)

func main() {
	address := flag.String("address", "127.0.0.1:50051", "the server")
	flag.Parse()
	prompt := "Write a haiku about rain."
	if flag.NArg() > 0 {
		prompt = flag.Arg(0)
	}
	client, err := magnitude.Dial(*address)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	messages := []*magnitudev1.ChatMessage{magnitude.User(prompt)}
	stream := client.Stream(context.Background(), magnitude.Chat(messages, magnitude.MaxTokens(64)))
	for text, err := range stream.Texts() {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(text)
	}
	usage, timings := stream.Finished.GetUsage(), stream.Finished.GetTimings()
	rate := float64(usage.GetCompletionTokens()) / max(timings.GetDecodeMs(), 0.001) * 1000
	fmt.Printf("\n%d + %d tokens, %.1f tokens/s\n", usage.GetPromptTokens(), usage.GetCompletionTokens(), rate)
}
