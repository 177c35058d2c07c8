package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
)

// prose is text of about n bytes as prompts hold it, written as a JSON string's inside.
func prose(n int, escapes bool) string {
	words := strings.Fields("the request passes through a gateway that picks one endpoint of a pool by what it holds and how long its queue is while tokens stream back")
	var out strings.Builder
	for i := 0; out.Len() < n; i++ {
		out.WriteString(words[(i*i+i/7)%len(words)])
		switch {
		case escapes && i%3 == 0:
			out.WriteString(`\n\t\"`)
		case i%14 == 13:
			out.WriteString(`.\n`)
		default:
			out.WriteByte(' ')
		}
	}
	return out.String()[:n/8*8]
}

// sampleBody is a body of about n bytes: "chat" has many messages, "long" one long text, "escapes" one text like source
// code, "chinese" one text above ASCII, "ids" a list of token ids.
func sampleBody(kind string, n int) []byte {
	const tail = `],"model":"meta-llama/Llama-3.1-8B-Instruct","stream":true,"stream_options":{"include_usage":true},"max_tokens":512,"temperature":0.7}`
	var out bytes.Buffer
	switch kind {
	case "chat":
		out.WriteString(`{"messages":[{"role":"system","content":"You are helpful."}`)
		for i := 0; out.Len() < n-len(tail); i++ {
			fmt.Fprintf(&out, `,{"role":"%s","content":"%s"}`, [...]string{"user", "assistant"}[i%2], prose(min(600+i%7*200, n/2), false))
		}
		out.WriteString(tail)
	case "ids":
		out.WriteString(`{"prompt":[1`)
		for i := 0; out.Len() < n-len(tail); i++ {
			fmt.Fprintf(&out, ", %d", i*7919%128000)
		}
		out.WriteString(tail)
	default:
		text := prose(n-len(tail)-60, kind == "escapes")
		if kind == "chinese" {
			text = strings.Repeat("网关选择一个端点，", (n-len(tail)-60)/27)
		}
		out.WriteString(`{"messages":[{"role":"user","content":"` + strings.TrimSuffix(text, `\`) + `"}`)
		out.WriteString(tail)
	}
	return out.Bytes()
}

func BenchmarkRead(b *testing.B) {
	for _, kind := range []string{"chat", "long", "escapes", "chinese", "ids"} {
		for _, kb := range []int{2, 220, 400} {
			p := sampleBody(kind, kb*1000)
			body := bodyOf(p)
			var s Scratch
			b.Run(fmt.Sprintf("%s/%dKB", kind, kb), func(b *testing.B) {
				b.SetBytes(int64(len(p)))
				b.ReportAllocs()
				for b.Loop() {
					r, err := Read("application/json", "", body, &s)
					if err != nil {
						b.Fatal(err)
					}
					s.Blocks(r.Model)
				}
			})
		}
	}
}

// BenchmarkScan is BenchmarkRead without the block hashes.
func BenchmarkScan(b *testing.B) {
	for _, kb := range []int{220, 400} {
		body := bodyOf(sampleBody("chat", kb*1000))
		var s Scratch
		b.Run(fmt.Sprintf("chat/%dKB", kb), func(b *testing.B) {
			b.SetBytes(body.Len())
			for b.Loop() {
				if _, err := Read("application/json", "", body, &s); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkEncodingJSON decodes the same bodies as everyone does, for comparison.
func BenchmarkEncodingJSON(b *testing.B) {
	for _, kb := range []int{2, 220, 400} {
		p := sampleBody("chat", kb*1000)
		b.Run(fmt.Sprintf("chat/%dKB", kb), func(b *testing.B) {
			b.SetBytes(int64(len(p)))
			b.ReportAllocs()
			for b.Loop() {
				var v map[string]any
				if err := json.Unmarshal(p, &v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkReadBody(b *testing.B) {
	for _, kb := range []int{2, 220, 400, 4000} {
		p := sampleBody("long", kb*1000)
		budget := NewBudget(0)
		b.Run(fmt.Sprintf("%dKB", kb), func(b *testing.B) {
			b.SetBytes(int64(len(p)))
			b.ReportAllocs()
			for b.Loop() {
				body, err := ReadBody(bytes.NewReader(p), int64(len(p)), 0, budget)
				if err != nil {
					b.Fatal(err)
				}
				r := body.Reader()
				if _, err := io.Copy(io.Discard, r); err != nil {
					b.Fatal(err)
				}
				r.Close()
				body.Free()
			}
		})
	}
}
