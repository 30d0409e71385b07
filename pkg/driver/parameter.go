package driver

// Parameter describes one that users give, for the reference in docs/parameters.md.
type Parameter struct {
	Key    string
	Values string // which are understood
	Unset  string // what it is if it is left out
	Does   string
}
