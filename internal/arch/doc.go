// Package arch holds the tests that keep the repository's shape: which room may import which, how long and how tangled
// a function may be, what every package owes its reader. There is no code here, so that nothing can come to depend on
// it.
//
// Each check is a function from a source tree to complaints, and each complaint says why the rule exists. The same
// functions run over the repository, where they must have nothing to say, and over the small broken trees in testdata,
// where they must. A change of a number or of a table row here is a decision: say in the commit what it buys.
package arch
