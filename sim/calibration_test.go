package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
)

const pointsHeader = "id,silicon_data_source,backend,model_path,system,precision,mode,isl,osl,batch_size,tp_size,pp_size,attention_dp_size,silicon_ttft_ms,silicon_tpot_ms\n"

// Points are compared with the profile of their model, GPU, number of GPUs, precision and engine, and with no other;
// each measurement counts once, and every second shape as held out.
func TestCalibrate(t *testing.T) {
	p := profile(t, "l70fp8-h100x4")
	line := func(id, rest string, wrong float64) string {
		x := point{input: 900, output: 50, concurrency: 4}
		if strings.Contains(rest, "900,60,4") {
			x.output = 60
		}
		ttft, tpot := x.run(p)
		return fmt.Sprintf("%s,somewhere,%s,%v,%v\n", id, rest, ttft/(1+wrong), tpot/(1-wrong/2))
	}
	const ours = "vllm,meta-llama/Llama-3.1-70B-Instruct,h100_sxm,fp8,agg,900,50,4,4,1,"
	text := pointsHeader + line("a", ours+"1", .1) + line("b", strings.Replace(ours, ",50,", ",60,", 1), .2) + line("c", ours+"1", -.3) + line("again", ours+"1", .1) +
		line("d", strings.Replace(ours, "vllm", "sglang", 1), .9) + line("e", strings.Replace(ours, "fp8", "", 1), .9) + line("f", strings.Replace(ours, ",4,1,", ",8,1,", 1), .9) +
		line("g", strings.Replace(ours, "agg", "disagg", 1), .9) + line("h", ours+"4", .9) + line("i", strings.Replace(ours, "h100", "gb200", 1), .9)
	c, err := Calibrate(context.Background(), strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, got := range c.Profiles {
		switch {
		case got.Profile == p.Name:
			// In order of ids: a and its repetition, b, c.
			about := func(got, want float64) {
				t.Helper()
				if math.Abs(got-want) > 1e-9 {
					t.Errorf("got %v, want %v", got, want)
				}
			}
			if got.All.Points != 3 || got.HeldOut.Points != 1 {
				t.Fatalf("got %d points and %d held out, want 3 and 1", got.All.Points, got.HeldOut.Points)
			}
			about(got.All.TTFT50, .2)
			about(got.All.TTFTBias, .1)
			about(got.HeldOut.TTFT50, .2)
			about(got.HeldOut.TPOTBias, -.1)
		case got.Profile != "l70-h100x4" && got.All.Points > 0 && got.Profile != "l70fp8-h100x8":
			t.Errorf("%s has points", got.Profile)
		}
	}
	if text := c.String(); !strings.Contains(text, "l8-a10g            derived              –            –            –") {
		t.Errorf("got %s", text)
	}
	if text, err := json.Marshal(c); err != nil || !strings.Contains(string(text), `"ttftP90":null`) {
		t.Errorf("got %s, %v", text, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Calibrate(ctx, strings.NewReader(text)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
}

// A file that is none says where and why.
func TestBadPoints(t *testing.T) {
	const line = "a,b,vllm,m,h100_sxm,fp8,agg,%s,50,4,4,1,1,%s,10\n"
	for want, text := range map[string]string{
		"header":                  "",
		"no column backend":       "id,silicon_data_source\n",
		"line 2: isl":             pointsHeader + fmt.Sprintf(line, "0", "1"),
		"line 3: silicon_ttft_ms": pointsHeader + fmt.Sprintf(line, "1", "1") + fmt.Sprintf(line, "1", "NaN"),
		"wrong number":            pointsHeader + "a,b\n",
	} {
		if _, err := readPoints(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want an error with %q", text, err, want)
		}
	}
}

// Whatever a file holds, reading it gives an error or points that can be simulated.
func FuzzReadPoints(f *testing.F) {
	f.Add([]byte(pointsHeader + "a,b,vllm,meta-llama/Llama-3.1-70B,h100_sxm,fp8,agg,1024,1024,16,4,1,1,121.4,13.19\n"))
	f.Add([]byte(pointsHeader + "a,x gap-analysis y,trtllm,Qwen/Qwen3-32B,h100_sxm,,agg,1,1,1,1,,,1e-9,1e8\n"))
	f.Add([]byte("id\n\"\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		points, err := readPoints(bytes.NewReader(data))
		if err != nil && points != nil {
			t.Fatal("points and an error")
		}
		for _, p := range points {
			if min(p.input, p.output, p.concurrency, p.tp) < 1 || max(p.input, p.output, p.concurrency) > maxPoint || !(p.ttft > 0 && p.tpot > 0) {
				t.Fatalf("got %+v", p)
			}
		}
	})
}
