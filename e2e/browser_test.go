//go:build doors && unix

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// chromiumVariable names a Chromium to use instead of the one on the path.
const chromiumVariable = "SLUICE_E2E_CHROMIUM"

// findChromium returns the browser's path.
func findChromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{os.Getenv(chromiumVariable), "chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatalf("cannot find Chromium on PATH; install it (on Debian the package chromium), or name one in %s", chromiumVariable)
	return ""
}

// browser is a tab of a Chromium that is this test's own, and what it complained about and asked for.
type browser struct {
	t    *testing.T
	ctx  context.Context
	mu   sync.Mutex
	bad  []string // exceptions, errors in the console, refused resources
	urls []string // of all requests
}

// startBrowser starts a Chromium without a window, with a profile of its own. It ends with the test.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	profile, err := os.MkdirTemp("", "sluice-e2e-chromium-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The browser's children may still write for a moment after it has ended.
		eventually(t, "the browser's profile to be removed", 30*time.Second, func() bool { return os.RemoveAll(profile) == nil })
	})
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(findChromium(t)), chromedp.UserDataDir(profile),
		chromedp.DisableGPU, chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true),
		chromedp.Env("HOME="+filepath.Join(profile, "home")))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium refuses to use its sandbox as root
	}
	allocated, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	b := &browser{t: t}
	b.ctx, cancel = chromedp.NewContext(allocated, chromedp.WithErrorf(t.Logf))
	t.Cleanup(cancel)
	b.do() // starts it
	if err := chromedp.Listen(b.ctx, b.hear); err != nil {
		t.Fatalf("cannot listen to the browser: %v", err)
	}
	for _, enable := range []func() error{
		func() error { _, err := chromedp.Call(b.ctx, log.Enable, cdp.Empty{}); return err },
		func() error { _, err := chromedp.Call(b.ctx, network.Enable, network.EnableParams{}); return err },
	} {
		if err := enable(); err != nil {
			t.Fatalf("cannot watch the browser: %v", err)
		}
	}
	return b
}

// hear notes what a careful reader of the developer tools would.
func (b *browser) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			text += " " + e.ExceptionDetails.Exception.Description
		}
		b.bad = append(b.bad, text)
	case *runtime.EventConsoleAPICalled:
		for _, a := range e.Args {
			b.bad = append(b.bad, string(e.Type)+" "+string(a.Value))
		}
	case *log.EventEntryAdded:
		b.bad = append(b.bad, string(e.Entry.Level)+" "+e.Entry.Text+" "+e.Entry.URL)
	case *network.EventRequestWillBeSent:
		b.urls = append(b.urls, e.Request.URL)
	}
}

// do runs actions of which the first must not have a time limit.
func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, actions...); err != nil {
		b.t.Fatalf("cannot drive the browser: %v", err)
	}
}

// ask evaluates JavaScript in the tab.
func ask[T any](b *browser, script string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 30*time.Second)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](script))
	if err != nil {
		b.t.Fatalf("cannot evaluate %s: %v", script, err)
	}
	return value
}

// until waits until a JavaScript condition holds; on failure it shows the page's text.
func (b *browser) until(what, condition string) {
	b.t.Helper()
	held := false
	defer func() {
		if !held {
			b.t.Logf("the page:\n%s", ask[string](b, "document.body.innerText"))
		}
	}()
	eventuallyEvery(b.t, 100*time.Millisecond, what, 30*time.Second, func() bool {
		held = ask[bool](b, condition)
		return held
	})
}

// scheme makes the tab prefer light or dark.
func (b *browser) scheme(name string) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}})
	if err != nil {
		b.t.Fatalf("cannot change the browser's colours: %v", err)
	}
}

// wantClean wants no complaint, and no request to anywhere but this origin.
func (b *browser) wantClean(origin string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, bad := range b.bad {
		b.t.Errorf("got %q in the browser's console, want nothing", bad)
	}
	for _, url := range b.urls {
		if !strings.HasPrefix(url, origin+"/") {
			b.t.Errorf("got a request to %s, want none beyond %s", url, origin)
		}
	}
	if len(b.urls) < 5 {
		b.t.Errorf("got requests %v, want the page's files and its data", b.urls)
	}
}
