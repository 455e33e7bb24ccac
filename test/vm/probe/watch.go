//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// watch looks at a function from outside, whatever driver has it.
func watch(ctx context.Context, bdf, period string) (err error) {
	p, err := time.ParseDuration(period)
	if err != nil {
		return err
	}
	t, err := vfio.OpenSysfs(bdf, vfio.KernelOptions{})
	if err != nil {
		return err
	}
	dev, err := vfio.NewDevice(t, vfio.DeviceOptions{})
	if err != nil {
		return errors.Join(err, t.Close())
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	bar, err := dev.Window(vfio.RegionBAR0)
	if err != nil {
		return err
	}
	m, err := health.New(health.Options{Window: bar, Device: "sysfs:" + bdf, Period: p})
	if err != nil {
		return err
	}
	if err := m.Start(ctx); err != nil {
		return err
	}
	defer m.Stop()
	settled := make(chan struct{})
	go func() { // ends with the monitor
		defer close(settled)
		if v, err := m.Wait(ctx); err == nil {
			say("known", v)
		}
	}()
	for e := range m.Events() {
		say(string(e.Kind), e)
	}
	<-settled
	say("report", m.Report())
	if ctx.Err() == nil {
		return fmt.Errorf("the monitor ended by itself")
	}
	return nil
}
