// Package auditstoretest holds what every implementation of the store port has to
// pass, and an in-memory one that behaves as badly as a replicated store may.
//
// A store runs the suite like this:
//
//	auditstoretest.Run(t, func(t *testing.T) auditstoretest.Harness {
//		s, err := auditstore.Open(t.TempDir(), nil)
//		...
//		return auditstoretest.Harness{Log: s, Blobs: s}
//	})
package auditstoretest
