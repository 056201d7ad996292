// Package decide is both sides of a decide service, the brain of an agent: [Client], with which runnerd asks it, and
// [ListenAndServe], with which others serve one.
//
// A decide service that answers everything alike is:
//
//	brain := decide.Func(func(ctx context.Context, req *runnerdv1.DecideRequest, text decide.TextSink) (*runnerdv1.Decision, error) {
//		return decide.Answer("42"), nil
//	})
//	log.Fatal(decide.ListenAndServe(ctx, "127.0.0.1:7791", brain))
//
// The package script serves decisions from a file, for tests and demonstrations.
package decide
