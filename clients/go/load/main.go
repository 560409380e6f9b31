// Load keeps a server busy with several streams at once and prints what came of it, in JSON:
// load [-address HOST:PORT] [-streams N] [-requests N] [-tokens N]
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	"magnitude.dev/magnitude"
	magnitudev1 "magnitude.dev/magnitude/v1"
)

// report is what all streams together have had.
type report struct {
	Requests int     `json:"requests"`
	Tokens   int     `json:"tokens"`
	Deltas   int     `json:"deltas"`
	Seconds  float64 `json:"seconds"`
}

func main() {
	address := flag.String("address", "127.0.0.1:50051", "the server")
	streams := flag.Int("streams", 16, "streams at the same time")
	requests := flag.Int("requests", 4, "requests of each stream, one after the other")
	tokens := flag.Uint("tokens", 64, "tokens of each answer")
	flag.Parse()
	client, err := magnitude.Dial(*address)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	begin := time.Now()
	reports := make(chan report)
	for number := range *streams {
		go func() { reports <- ask(client, number, *requests, uint32(*tokens)) }()
	}
	var all report
	for range *streams {
		one := <-reports
		all.Requests += one.Requests
		all.Tokens += one.Tokens
		all.Deltas += one.Deltas
	}
	all.Seconds = time.Since(begin).Seconds()
	if err := json.NewEncoder(os.Stdout).Encode(all); err != nil {
		log.Fatal(err)
	}
}

// ask streams one answer after the other. No two of all prompts are alike, or the prefix index would spare the server
// work that a benchmark means to give it.
func ask(client *magnitude.Client, number, requests int, tokens uint32) (had report) {
	for i := range requests {
		prompt := fmt.Sprintf("%d-%d. Write a long story about a lighthouse keeper and the sea.", number, i)
		stream := client.Stream(context.Background(), magnitude.Text(prompt, magnitude.MaxTokens(tokens), untilLimit))
		for _, err := range stream.Texts() {
			if err != nil {
				log.Fatalf("stream %d, request %d: %v", number, i, err)
			}
			had.Deltas++
		}
		if count := stream.Finished.GetUsage().GetCompletionTokens(); count != tokens {
			log.Fatalf("stream %d, request %d: %d tokens instead of %d", number, i, count, tokens)
		}
		had.Requests++
		had.Tokens += int(tokens)
	}
	return had
}

// untilLimit generates all tokens that were asked for, whatever the model would do.
func untilLimit(r *magnitudev1.InferRequest) {
	r.Stopping.IgnoreEos = true
}
