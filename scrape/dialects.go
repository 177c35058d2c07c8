package scrape

import "math"

// column is a number of fleet.Reading, or something it is computed from.
type column uint8

const (
	waiting column = iota
	running
	kvUse
	kvTokens
	prefillSeconds
	prefillTokens
	decodeSeconds
	decodeTokens
	cachedTokens
	progress // whatever moves with every step, and not only when an answer ends
	maxAdapters
	adapters // names, in the labels of one series
	kvUsed   // tokens in the KV cache; with the cache's size found by asking it gives kvUse
	firsts
	firstSeconds
	finished
	finishedPrompt
	finishedOutput
	columns
)

// A column's label is what metrics call it, its words what people read.
var (
	columnLabels = [columns]string{"waiting", "running", "kv_use", "kv_tokens", "prefill_seconds", "prefill_tokens", "decode_seconds", "decode_tokens",
		"cached_tokens", "progress", "max_adapters", "adapters", "kv_used", "first_tokens", "first_token_seconds", "finished", "finished_prompt_tokens",
		"finished_output_tokens"}
	columnWords = [columns]string{"waiting requests", "running requests", "KV use", "KV cache size", "prefill time", "computed prompt tokens",
		"decode time", "output tokens", "cached prompt tokens", "progress while it works", "adapter slots", "adapters", "KV cache in use",
		"first tokens", "time to first tokens", "finished requests", "their prompt tokens", "their output tokens"}
)

// required are the columns whose absence is reported: those that routing or learning reads. Adapters are not among
// them, since an engine without adapters says nothing of them.
var required = [...]column{waiting, running, kvUse, kvTokens, prefillSeconds, prefillTokens, decodeSeconds, decodeTokens, cachedTokens, progress}

// rule says how several series of one metric become one number.
type rule uint8

const (
	sum    rule = iota
	mean        // shares of equal parts, such as the KV use of ranks: times the summed size it is the tokens in use
	most        // a size that every rank repeats
	newest      // names, in the series whose value, a wall-clock time, is the largest
)

// operand finds one number on a page.
type operand struct {
	// name is the metric without its dialect's prefix; a counter is also found with _total behind it.
	name    string
	counter bool
	rule    rule
	// only, when set, is a label and the value it must have.
	only [2]string
	// from is the label that holds the number, empty for the sample's own value.
	from string
}

// way is one way to fill a column: a, or a op b.
type way struct {
	a  operand
	op byte // 0, '*', '/' or '-'
	b  operand
}

// dialect is how one engine speaks. Its metrics are named prefix, ':' or '_', and a name: engines have changed from one
// to the other.
type dialect struct {
	engine string
	prefix string
	// separator is the usual one, to name what is missing.
	separator string
	// path is where metrics are if not at /metrics.
	path string
	// narrow is the path where a page of /metrics can be had with chosen samples alone, by the parameters name[] of
	// Python's prometheus_client.
	narrow string
	// owner is what the engine writes as owned_by in its list of models, if that tells it.
	owner string
	// model is the label with the model's name.
	model string
	// rank is the label with the data-parallel rank, numbered over the whole deployment; empty where there is none.
	rank string
	// unranked are columns whose series have no rank although those of others have: they say nothing of one.
	unranked []column
	// copies are labels that tell apart series which repeat one another: of those the largest value counts.
	copies []string
	// ways fill each column; of several the first that is on the page counts.
	ways [columns][]way
}

func gauge(name string) operand             { return operand{name: name} }
func counter(name string) operand           { return operand{name: name, counter: true} }
func histogramSum(name string) operand      { return operand{name: name + "_sum"} }
func histogramCount(name string) operand    { return operand{name: name + "_count"} }
func label(name, from string) operand       { return operand{name: name, from: from} }
func (o operand) where(l, v string) operand { o.only = [2]string{l, v}; return o }
func (o operand) by(r rule) operand         { o.rule = r; return o }

func first(operands ...operand) []way {
	ways := make([]way, len(operands))
	for i, o := range operands {
		ways[i].a = o
	}
	return ways
}

// dialects is the table. To add an engine, add a row, a page of it under testdata/pages, a line in pages.txt, and run
// the tests with -rewrite.
//
// Seconds and tokens of a pair must move at the same moments, since their ratio is learned between two scrapes. So
// decode time is the sum of time between tokens where there is one, which grows with every token like the count of
// tokens does, and not the decode time of finished requests.
var dialects = []dialect{
	{
		engine: "vllm", prefix: "vllm", separator: ":", owner: "vllm", model: "model_name", rank: "engine",
		// Only with the slash is it the library's own application that answers: that without is FastAPI's, which ignores names.
		narrow: "/metrics/",
		ways: [columns][]way{
			waiting: first(gauge("num_requests_waiting")),
			running: first(gauge("num_requests_running")),
			kvUse:   first(gauge("kv_cache_usage_perc").by(mean), gauge("gpu_cache_usage_perc").by(mean)),
			kvTokens: {
				{a: label("cache_config_info", "kv_cache_size_tokens")},
				{a: label("cache_config_info", "num_gpu_blocks"), op: '*', b: label("cache_config_info", "block_size").by(most)},
			},
			prefillSeconds: first(histogramSum("request_prefill_time_seconds")),
			prefillTokens: first(histogramSum("request_prefill_kv_computed_tokens"),
				counter("prompt_tokens_by_source").where("source", "local_compute")),
			decodeSeconds: first(histogramSum("inter_token_latency_seconds"), histogramSum("time_per_output_token_seconds"),
				histogramSum("request_decode_time_seconds")),
			decodeTokens: first(counter("generation_tokens")),
			cachedTokens: first(counter("prompt_tokens_cached"), counter("prefix_cache_hits"), counter("gpu_prefix_cache_hits")),
			progress:     first(histogramSum("iteration_tokens_total"), counter("generation_tokens")),
			adapters:     first(operand{name: "lora_requests_info", rule: newest}),
			firsts:       first(histogramCount("time_to_first_token_seconds")),
			firstSeconds: first(histogramSum("time_to_first_token_seconds")),
			// Those that ended by an abort count, too.
			finished:       first(histogramCount("request_generation_tokens")),
			finishedPrompt: first(histogramSum("request_prompt_tokens")),
			finishedOutput: first(histogramSum("request_generation_tokens")),
		},
	},
	{
		engine: "sglang", prefix: "sglang", separator: ":", owner: "sglang", model: "model_name", rank: "dp_rank",
		// Each tensor rank may write what its data-parallel group does, and a queue is written whole and by priority.
		copies:   []string{"tp_rank", "pp_rank", "moe_ep_rank", "priority"},
		unranked: []column{firsts, firstSeconds, finished, finishedPrompt, finishedOutput},
		ways: [columns][]way{
			waiting: first(gauge("num_queue_reqs")),
			running: first(gauge("num_running_reqs")),
			kvUse:   first(gauge("token_usage").by(mean)),
			kvTokens: {
				{a: gauge("max_total_num_tokens")},
				{a: gauge("num_pages"), op: '*', b: gauge("page_size").by(most)},
				{a: label("cache_config_info", "num_pages"), op: '*', b: label("cache_config_info", "page_size").by(most)},
			},
			prefillSeconds: first(counter("forward_execution_seconds").where("category", "extend"),
				histogramSum("per_stage_req_latency_seconds").where("stage", "prefill_forward")),
			prefillTokens: {
				{a: counter("realtime_tokens").where("mode", "prefill_compute")},
				{a: counter("prompt_tokens"), op: '-', b: counter("cached_tokens")},
			},
			decodeSeconds: first(histogramSum("inter_token_latency_seconds")),
			decodeTokens:  first(counter("realtime_tokens").where("mode", "decode"), counter("generation_tokens")),
			cachedTokens:  first(counter("cached_tokens"), counter("realtime_tokens").where("mode", "prefill_cache")),
			progress:      first(counter("realtime_tokens"), counter("forward_execution_seconds")),
			maxAdapters:   first(gauge("lora_pool_slots_total").by(most)),
			firsts:        first(histogramCount("time_to_first_token_seconds")),
			firstSeconds:  first(histogramSum("time_to_first_token_seconds")),
			// All three move when a request ends.
			finished:       first(counter("num_requests")),
			finishedPrompt: first(counter("prompt_tokens")),
			finishedOutput: first(counter("generation_tokens")),
		},
	},
	{
		engine: "tgi", prefix: "tgi", separator: "_",
		ways: [columns][]way{
			waiting: first(gauge("queue_size")),
			running: first(gauge("batch_current_size")),
			// The page has no size of the cache: /info says max_batch_total_tokens.
			kvUsed:         first(gauge("batch_current_max_tokens")),
			prefillSeconds: first(histogramSum("batch_inference_duration").where("method", "prefill")),
			prefillTokens:  first(histogramSum("request_input_length")),
			decodeSeconds:  first(histogramSum("request_inference_duration")),
			decodeTokens:   first(histogramSum("request_generated_tokens")),
			progress:       first(histogramSum("batch_inference_duration")), // of steps, unlike those of requests
			finished:       first(histogramCount("request_generated_tokens")),
			finishedPrompt: first(histogramSum("request_input_length")),
			finishedOutput: first(histogramSum("request_generated_tokens")),
		},
	},
	{
		engine: "llamacpp", prefix: "llamacpp", separator: ":", owner: "llamacpp", model: "model",
		ways: [columns][]way{
			waiting:        first(gauge("requests_deferred")),
			running:        first(gauge("requests_processing")),
			kvUse:          first(gauge("kv_cache_usage_ratio").by(mean)),
			prefillSeconds: first(counter("prompt_seconds")),
			prefillTokens:  first(counter("prompt_tokens")),
			decodeSeconds:  first(counter("tokens_predicted_seconds")),
			decodeTokens:   first(counter("tokens_predicted")),
			cachedTokens:   first(counter("prompt_tokens_cached")),
			progress:       first(counter("n_decode")), // tokens are counted when an answer ends
		},
	},
	{
		engine: "trtllm", prefix: "trtllm", separator: "_", path: "/prometheus/metrics", model: "model_name",
		ways: [columns][]way{
			waiting: first(gauge("num_requests_waiting")),
			running: first(gauge("num_requests_running")),
			kvUse: {
				{a: gauge("kv_cache_utilization").by(mean)},
				{a: gauge("kv_cache_used_blocks"), op: '/', b: gauge("kv_cache_max_blocks")},
			},
			kvTokens: {{a: gauge("kv_cache_max_blocks"), op: '*', b: gauge("kv_cache_tokens_per_block").by(most)}},
		},
	},
	{
		engine: "triton", prefix: "nv_trt_llm", separator: "_", model: "model",
		ways: [columns][]way{
			waiting: first(gauge("request_metrics").where("request_type", "waiting")),
			running: {
				{a: gauge("request_metrics").where("request_type", "scheduled")},
				{a: gauge("request_metrics").where("request_type", "active")},
			},
			kvUse: {
				{a: gauge("kv_cache_block_metrics").where("kv_cache_block_type", "fraction").by(mean)},
				{a: gauge("kv_cache_block_metrics").where("kv_cache_block_type", "used"), op: '/',
					b: gauge("kv_cache_block_metrics").where("kv_cache_block_type", "max")},
			},
			kvTokens: {{a: gauge("kv_cache_block_metrics").where("kv_cache_block_type", "max"), op: '*',
				b: gauge("kv_cache_block_metrics").where("kv_cache_block_type", "tokens_per").by(most)}},
		},
	},
}

// Engines lists the engines whose metrics are understood, in the order of the table.
func Engines() []string {
	names := make([]string, len(dialects))
	for i := range dialects {
		names[i] = dialects[i].engine
	}
	return names
}

// title names an operand as it stands on a page.
func (d *dialect) title(o operand) string {
	name := d.prefix + d.separator + o.name
	if o.counter {
		name += "_total"
	}
	if o.only[0] != "" {
		name += `{` + o.only[0] + `="` + o.only[1] + `"}`
	}
	return name
}

// lack is what routing could use and an endpoint doesn't say, as labels and in words, in one order.
type lack struct{ labels, words []string }

// missing says which columns are not known, and the metric, by its present name, that would have filled each, where the
// engine has one.
func (d *dialect) missing(known *[columns]float64) lack {
	var l lack
	for _, c := range required {
		if !math.IsNaN(known[c]) {
			continue
		}
		words := columnWords[c]
		if len(d.ways[c]) > 0 {
			words += " (" + d.title(d.ways[c][0].a) + ")"
		}
		l.labels, l.words = append(l.labels, columnLabels[c]), append(l.words, words)
	}
	return l
}
