package config

import "testing"

func TestCanonicalAddress(t *testing.T) {
	for address, want := range map[string]string{
		"10.9.0.1": "10.9.0.1", "10.9.0.1:80": "10.9.0.1:80", "[FD00:0::2]": "[fd00::2]", "[fd00:0::2]:80": "[fd00::2]:80",
		"[::ffff:10.9.0.1]": "10.9.0.1", "[::ffff:10.9.0.1]:80": "10.9.0.1:80", "Llama-0.llama:80": "llama-0.llama:80", "Lab": "lab", "http://Lab": "http://Lab",
	} {
		if got := CanonicalAddress(address); got != want {
			t.Errorf("%s: got %s, want %s", address, got, want)
		}
	}
}
