//go:build doors && unix

package e2e

import (
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// painted counts the pixels of the plot with that id that have the colour of the first side.
func painted(b *browser, plot string) int {
	return ask[int](b, `(() => {
		const drawn = document.querySelector("#`+plot+` canvas"); // read from a copy: the browser warns of reading what is on the screen
		const canvas = new OffscreenCanvas(drawn.width, drawn.height), context = canvas.getContext("2d", { willReadFrequently: true });
		context.drawImage(drawn, 0, 0);
		const want = getComputedStyle(document.documentElement).getPropertyValue("--side-0").trim().match(/[0-9a-f]{2}/g).map((x) => parseInt(x, 16));
		const all = context.getImageData(0, 0, canvas.width, canvas.height).data;
		let n = 0;
		for (let i = 0; i < all.length; i += 4) if (all[i + 3] > 128 && want.every((x, k) => Math.abs(all[i + k] - x) < 40)) n++;
		return n;
	})()`)
}

// wantPainted waits for a line that can be seen in the plot with that id.
func wantPainted(b *browser, plot string) {
	b.t.Helper()
	eventuallyEvery(b.t, 200*time.Millisecond, "a line in the first side's colour in "+plot, 30*time.Second, func() bool { return painted(b, plot) >= 20 })
}

// TestConsole looks at the console in a browser while engines serve, after one was
// killed, and after the gateway has gone. Behind Envoy the gateway knows when answers
// began where it asks to see them.
func TestConsole(t *testing.T) { throughBoth(t, showConsole) }

func showConsole(t *testing.T, d door) {
	engines := startEngines(t, 3, 4, "--alias", chatModel)
	args := []string{"--endpoint", chatModel + "=" + addresses(engines), "--endpoint", markup + "=" + engines[1].address}
	if d.envoy {
		args = append(args, "--see-answers", "1")
	}
	g := d.start(t, []string{chatModel}, args...)
	b := startBrowser(t)
	b.scheme("light")
	b.do(chromedp.EmulateViewport(1360, 900), chromedp.Navigate(g.admin+"/console"))
	b.until("a tile for each endpoint that says it is ready", `document.querySelectorAll(".tile[data-state=ready]").length === 4 &&
		[...document.querySelectorAll(".tile .badge")].every((e) => e.innerText.trim() === "ready")`)
	before := painted(b, "plot-ttft")

	client := startClient(t, "load", g.url, "--requests", "40", "--concurrency", "6", "--tokens", "24")
	wantNoneLost(t, client.finish(2*time.Minute))
	b.until("values above each plot", `[...document.querySelectorAll(".values .value b")].length === 5 &&
		[...document.querySelectorAll(".values .value b")].every((e) => /[0-9]/.test(e.textContent))`)
	if before > 0 {
		t.Errorf("got %d pixels of a TTFT line before there were requests, want none", before)
	}
	wantPainted(b, "plot-ttft")
	wantPainted(b, "plot-tokens")

	consoleExplains(t, b)
	consoleTrusts(t, b, g)
	consoleRests(b)
	consoleFits(t, b)

	engines[0].signal(syscall.SIGKILL)
	b.until("the killed engine's tile to say so, and why", `[...document.querySelectorAll(".tile[data-state='not ready']")].some((e) =>
		e.querySelector(".tilename").textContent === "`+engines[0].address+`" && e.querySelector(".badge").innerText.trim() === "not ready" && e.querySelector(".tilewhy").textContent !== "")`)

	b.wantClean(g.admin)
	g.stop(t)
	b.until("the page to say that the gateway is gone", `document.getElementById("status").innerText.includes("has not answered since")`)
}

// consoleExplains chooses requests, by mouse and by keyboard, and wants reasons.
func consoleExplains(t *testing.T, b *browser) {
	t.Helper()
	b.until("requests in the list", `document.querySelectorAll("#list .option").length >= 10`)
	b.do(chromedp.Click(`#list .option:nth-child(2)`))
	const shown = `document.querySelectorAll("#why .bar").length === 3 && /is chosen/.test(document.querySelector("#why .sentences").innerText)`
	b.until("three bars and the reason in words", shown)
	if n := ask[int](b, `[...document.querySelectorAll("#why .bar .stack i")].filter((e) => e.getBoundingClientRect().width > 1).length`); n < 3 {
		t.Errorf("got %d visible parts of bars, want one for each endpoint at least", n)
	}
	if held := ask[string](b, `[...document.querySelectorAll("#why .bar .held")].map((e) => e.textContent).join()`); strings.Count(held, " cached, guessed") != 3 {
		t.Errorf("got %q, want what each endpoint should find in its cache, and that it is guessed", held)
	}
	if notes := ask[string](b, `[...document.querySelectorAll(".tile [data-field=events]")].map((e) => e.innerText.replace(/\s+/g, " ")).join()`); !strings.Contains(notes, "prefixes guessed") {
		t.Errorf("got %q of the endpoints' KV events, want that what is held is guessed", notes)
	}
	if kinds := ask[string](b, `document.querySelector(".kinds").innerText`); !strings.Contains(kinds, ": steps not calibrated") {
		t.Errorf("got %q of the kinds of endpoints, want how many there are and where their speed is from", kinds)
	}
	if marks := ask[string](b, `[...document.querySelectorAll("#why .mark")].map((e) => e.textContent).join()`); !strings.Contains(marks, "chosen") || !strings.Contains(marks, "fallback 1") {
		t.Errorf("got marks %q, want the chosen one and the first fallback", marks)
	}
	if first, option := ask[string](b, `document.querySelector("#why-title").textContent`), ask[string](b, `document.querySelector("#list [aria-selected=true] .where").textContent`); first != "Why "+option+"?" {
		t.Errorf("got the title %q for a request to %q", first, option)
	}

	first := ask[string](b, `document.querySelector("#list [aria-selected=true]").dataset.key`)
	b.do(chromedp.KeyEvent(kb.ArrowDown))
	second := ask[string](b, `document.activeElement.dataset.key ?? ""`)
	if selected := ask[string](b, `document.querySelector("#list [aria-selected=true]").dataset.key`); second == first || selected != second {
		t.Errorf("got %q selected and %q focused after an arrow down from %q, want the next one", selected, second, first)
	}
	b.until("the next request's reasons", shown+` && document.querySelector("#why .facts").innerText.includes("`+second+`")`)
}

// markup is the name of a model that would be an element, if anything took it for one.
const markup = "<img src>"

// consoleTrusts sends a request for that model, and wants its name shown as it is.
func consoleTrusts(t *testing.T, b *browser, g *gateway) {
	t.Helper()
	answer, err := http.Post(g.url+"/v1/chat/completions", "application/json",
		strings.NewReader(`{"model":"`+markup+`","max_tokens":1,"messages":[{"role":"user","content":"hi"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	find := `[...document.querySelectorAll("#list .option")].find((e) => e.querySelector(".what").textContent.endsWith("` + markup + `"))`
	b.until("the request in the list", `document.getElementById("newer").click(), !!`+find)
	ask[bool](b, find+`.click(), true`)
	b.until("its model among its facts, as text", `[...document.querySelectorAll("#why .facts dd")].some((e) => e.textContent === "`+markup+`")`)
	if n := ask[int](b, `document.querySelectorAll("main img").length`); n != 0 {
		t.Errorf("got %d images made of a model's name, want none", n)
	}
}

// consoleRests hides the tab and shows it again.
func consoleRests(b *browser) {
	b.t.Helper()
	hide := func(hidden string) {
		ask[bool](b, `Object.defineProperty(document, "hidden", { configurable: true, value: `+hidden+` }), document.dispatchEvent(new Event("visibilitychange"))`)
	}
	hide("true")
	b.until("the page to rest while it is hidden", `document.getElementById("status").dataset.state === "paused"`)
	hide("false")
	b.until("the page to go on", `document.getElementById("status").dataset.state === "live"`)
}

// consoleFits looks at the page on a phone and in the dark.
func consoleFits(t *testing.T, b *browser) {
	t.Helper()
	background := func() string { return ask[string](b, `getComputedStyle(document.body).backgroundColor`) }
	light := background()
	b.scheme("dark")
	b.until("the browser to prefer the dark", `matchMedia("(prefers-color-scheme: dark)").matches`)
	if dark := background(); dark == light {
		t.Errorf("got %s as the background by day and by night, want them to differ", dark)
	}
	wantPainted(b, "plot-ttft")
	b.do(chromedp.EmulateViewport(360, 780))
	b.until("a page as wide as the screen", `innerWidth === 360 && document.documentElement.scrollWidth <= 360`)
	// Whoever hangs out on the right without a box of its own to scroll in is cut off.
	out := ask[string](b, `[...document.querySelectorAll("main *")].filter((e) => !e.closest(".scroll, .plot, .unseen") && e.getBoundingClientRect().right > 360.5)
		.map((e) => e.tagName + "." + e.className).join(" ")`)
	if out != "" {
		t.Errorf("got %s beyond the right edge at 360 px, want nothing", out)
	}
	b.scheme("light")
	b.do(chromedp.EmulateViewport(1360, 900))
}
