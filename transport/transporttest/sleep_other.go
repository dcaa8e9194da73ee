//go:build !linux

package transporttest

import "github.com/gccl-project/gccl/transport"

func sleeperOf(e transport.Endpoint, way string, woken <-chan struct{}) (sleeper, string) {
	_, hasBell := e.(transport.Bell)
	_, hasPoll := e.(transport.Pollable)
	if way == "Wake" && !hasBell && !hasPoll {
		return wakeup(woken), ""
	}
	return nil, "futexes and epoll are Linux's"
}
