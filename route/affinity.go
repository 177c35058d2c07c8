package route

const (
	// errorMS is what a failed request costs: its client asks again, at the earliest after a second.
	errorMS = 1000
	// maxErrors bounds the share of failures that is believed, so that nothing costs more than 19 failures.
	maxErrors = .95
)

// sessionMS is what the request's session loses where it is not at home: what the prefix index does not see, such as
// the answers that the endpoint has computed.
func sessionMS(dst Column, v *View) {
	clear(dst)
	home := int(v.Home) - 1
	if home < 0 || home >= len(dst) || !(v.SessionMS > 0) {
		return
	}
	for i := range dst {
		if i != home {
			dst[i] = v.SessionMS
		}
	}
}

// scoreSession is absolute: 1 for the endpoint that the request's session is at, 0 for others, and for all when it is
// at none.
func scoreSession(dst Column, v *View) {
	clear(dst)
	if home := int(v.Home) - 1; home >= 0 && home < len(dst) {
		dst[home] = 1
	}
}

// errorsMS is what the failures to be expected cost: of an endpoint that fails every other request, one for each that
// it serves. Without it an endpoint that fails at once looks idle, and draws more the more it fails.
func errorsMS(dst Column, v *View) {
	for i, share := range v.column(v.Errors) {
		share = min(max(share, 0), maxErrors)
		dst[i] = errorMS * share / (1 - share)
	}
}
