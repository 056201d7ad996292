package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/runnerd/runnerd/pkg/auditstore"
)

// newMetrics is what /metrics shows: the process, the store and, once the
// server has registered them, calls.
func newMetrics(store *auditstore.Store) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		storeMetrics{store})
	return registry
}

// storeMetrics shows the statistics of a store.
type storeMetrics struct{ store *auditstore.Store }

var (
	storeCommits = storeMetric("commit_seconds", "Time of commits; each is on the disk when it is counted.")
	storeAppends = storeMetric("appends_total", "Appends recorded: one a turn of a run.")
	storeEvents  = storeMetric("events_total", "Events recorded.")
	storeBytes   = storeMetric("appended_bytes_total", "Bytes of recorded events.")
	storeFile    = storeMetric("file_bytes", "Size of the log file.")
	storeFree    = storeMetric("free_pages", "Pages of the log file that can be used again.")
	storeReads   = storeMetric("open_reads", "Read transactions in progress.")
	storeRing    = storeMetric("ring_bytes", "Memory that the newest appends take.")
	storeFull    = storeMetric("full", "1 while the disk is too full for new runs.")
)

func storeMetric(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("runnerd_store_"+name, help, nil, nil)
}

// Describe implements prometheus.Collector.
func (m storeMetrics) Describe(descs chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, descs) }

// Collect implements prometheus.Collector.
func (m storeMetrics) Collect(metrics chan<- prometheus.Metric) {
	s := m.store.Stats()
	buckets := make(map[float64]uint64, auditstore.CommitBuckets)
	var below uint64
	for i, n := range s.CommitTimes[:auditstore.CommitBuckets-1] { // the last has no bound
		below += n
		buckets[(16 * time.Microsecond << i).Seconds()] = below
	}
	metrics <- prometheus.MustNewConstHistogram(storeCommits, s.Commits, s.CommitTime.Seconds(), buckets)
	full := 0.0
	if m.store.Full() {
		full = 1
	}
	for _, v := range []struct {
		desc  *prometheus.Desc
		kind  prometheus.ValueType
		value float64
	}{
		{storeAppends, prometheus.CounterValue, float64(s.Appends)},
		{storeEvents, prometheus.CounterValue, float64(s.Events)},
		{storeBytes, prometheus.CounterValue, float64(s.Bytes)},
		{storeFile, prometheus.GaugeValue, float64(s.FileBytes)},
		{storeFree, prometheus.GaugeValue, float64(s.FreePages)},
		{storeReads, prometheus.GaugeValue, float64(s.OpenReads)},
		{storeRing, prometheus.GaugeValue, float64(s.RingBytes)},
		{storeFull, prometheus.GaugeValue, full},
	} {
		metrics <- prometheus.MustNewConstMetric(v.desc, v.kind, v.value)
	}
}

// serveMetrics serves /metrics until ctx ends.
func serveMetrics(ctx context.Context, listener net.Listener, registry *prometheus.Registry) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, WriteTimeout: time.Minute}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving metrics: %w", err)
	}
	return nil
}
