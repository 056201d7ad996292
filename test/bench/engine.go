package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
)

// engine executes runs in a process of its own, with a store of its own.
type engine interface {
	// load executes runs and returns when the last one is done.
	load(ctx context.Context, l load) error
	pid() int
	// close ends the process in good order. The store stays.
	close() error
}

// floorEngine is a floor as an engine.
type floorEngine struct {
	*child
	bolt bool // it commits
}

func (f floorEngine) load(_ context.Context, l load) error { return f.call("load", l, nil) }

func (f floorEngine) close() error {
	f.stop()
	return nil
}

// bench is the benchmark: its stub processes and where it works.
type bench struct {
	report
	runnerd string // the daemon's binary
	rules   string // the test binary of its rules
	dir     string // scratch, on the disk that is measured
	quick   bool   // little work: to see that all measures work
	rounds  int

	decide, tools *child
	folders       int
}

// engines are what the workload is measured on, floors first.
var engines = []string{"floor-go", "floor-bbolt", "runnerd"}

// folder returns a new empty directory.
func (b *bench) folder() (string, error) {
	b.folders++
	dir := filepath.Join(b.dir, fmt.Sprintf("%d", b.folders))
	return dir, os.Mkdir(dir, 0o700)
}

// start starts an engine with an empty store, in a directory of its own.
func (b *bench) start(ctx context.Context, name string) (e engine, dir string, err error) {
	if dir, err = b.folder(); err != nil {
		return nil, "", err
	}
	if name == "runnerd" {
		d, err := b.daemon(ctx, dir)
		return d, dir, err
	}
	args := []string{"floor", b.decide.address, b.tools.address}
	if name == "floor-bbolt" {
		args = append(args, dir)
	}
	c, err := startChild(ctx, args...)
	if err != nil {
		return nil, "", fmt.Errorf("start %s: %w", name, err)
	}
	return floorEngine{child: c, bolt: name == "floor-bbolt"}, dir, nil
}

// sample is what an engine did with a load.
type sample struct {
	seconds    float64
	iterations int
	cpu        float64 // seconds, of the engine's process
	memory     memory
}

func (s sample) rate() float64         { return float64(s.iterations) / s.seconds }
func (s sample) cpuPer1000() float64   { return 1000 * s.cpu / float64(s.iterations) }
func (s sample) peakMegabyte() float64 { return float64(s.memory.peak) / 1e6 }

// measure puts a load on an engine.
func measure(ctx context.Context, e engine, l load) (sample, error) {
	before, err := cpuTime(e.pid())
	if err != nil {
		return sample{}, err
	}
	began := time.Now()
	if err := e.load(ctx, l); err != nil {
		return sample{}, err
	}
	s := sample{seconds: time.Since(began).Seconds(), iterations: l.Runs * l.Work.Iterations}
	after, err := cpuTime(e.pid())
	if err != nil {
		return sample{}, err
	}
	s.cpu = (after - before).Seconds()
	s.memory, err = memoryOf(e.pid())
	return s, err
}

// storeBytes returns how many bytes the pages in use of the bbolt file in a directory take. The file itself grows in
// big steps, which would say little about a run.
func storeBytes(dir string) (used int64, err error) {
	err = viewStore(dir, func(tx *bbolt.Tx) error {
		pageSize := int64(tx.DB().Info().PageSize)
		for id := int64(0); id < tx.Size()/pageSize; id++ {
			page, err := tx.Page(int(id))
			if err != nil {
				return err
			}
			if page.Type == "free" {
				continue
			}
			used += int64(1+page.OverflowCount) * pageSize
			id += int64(page.OverflowCount)
		}
		return nil
	})
	return used, err
}

// viewStore reads the bbolt file in a directory whose process has ended.
func viewStore(dir string, fn func(*bbolt.Tx) error) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.db"))
	if err != nil {
		return err
	}
	if len(files) != 1 {
		return fmt.Errorf("%d database files in %s, not one", len(files), dir)
	}
	db, err := bbolt.Open(files[0], 0o600, &bbolt.Options{
		Timeout: 5 * time.Second, ReadOnly: true, PreLoadFreelist: true, FreelistType: bbolt.FreelistMapType,
	})
	if err != nil {
		return err
	}
	return errors.Join(db.View(fn), db.Close())
}
