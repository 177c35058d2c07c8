package route

const (
	// errorMS is what a failed request costs: its client asks again, at the earliest after a second.
	errorMS = 1000
	// maxErrors bounds the share of failures that is believed, so that nothing costs more than 19 failures.
	maxErrors = .95
)

// errorsMS is what the failures to be expected cost: of an endpoint that fails every other request, one for each that
// it serves. Without it an endpoint that fails at once looks idle, and draws more the more it fails.
func errorsMS(dst Column, v *View) {
	for i, share := range v.column(v.Errors) {
		share = min(max(share, 0), maxErrors)
		dst[i] = errorMS * share / (1 - share)
	}
}
