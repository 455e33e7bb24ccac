package sim

import "github.com/mlxvfio/mlxvfio/internal/prm"

// qpFlow is what the data engine knows of a QP.
type qpFlow struct{}

// noEngine moves no data: doorbells of send queues are counted as ignored.
type noEngine struct{ f *function }

func (e noEngine) ringSend(*qp, uint64) { e.f.count.DoorbellsIgnored++ }
func (noEngine) moved(*qp, prm.QPState) {}
func (noEngine) removed(*qp)            {}
func (noEngine) fill(*qp, *prm.QPC)     {}
func (noEngine) reset()                 {}
