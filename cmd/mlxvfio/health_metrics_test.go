package main

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/mlxvfio/mlxvfio/health"
	"github.com/stretchr/testify/require"
)

// TestMetricsServerIsBounded: a client of the endpoint can neither send headers
// without end nor hold a connection by saying nothing.
func TestMetricsServerIsBounded(t *testing.T) {
	a := &app{out: io.Discard, err: io.Discard}
	p, err := a.attachPatient(t.Context(), "sim", healthFlags{period: 50 * time.Millisecond, command: time.Second})
	require.NoError(t, err)
	defer func() { _ = p.close(t.Context()) }()
	require.NoError(t, p.begin(t.Context(), health.Options{}))
	s, err := serveMetrics("127.0.0.1:0", p)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.close()) }()
	for what, limit := range map[string]time.Duration{"header": s.srv.ReadHeaderTimeout, "request": s.srv.ReadTimeout, "answer": s.srv.WriteTimeout, "idle": s.srv.IdleTimeout} {
		require.Positive(t, limit, what)
		require.LessOrEqual(t, limit, time.Minute, what)
	}
	addr := strings.TrimSuffix(strings.TrimPrefix(s.url, "http://"), "/metrics")
	ask := func(request string) string {
		c, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer func() { _ = c.Close() }()
		require.NoError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
		_, _ = io.WriteString(c, request) // the server may have hung up before the end of it
		b, _ := io.ReadAll(c)
		return string(b)
	}
	require.Contains(t, ask("GET /metrics HTTP/1.0\r\n\r\n"), "mlxvfio_health_state")
	require.Contains(t, ask("GET /metrics HTTP/1.0\r\nX: "+strings.Repeat("x", 64<<10)+"\r\n\r\n"), "431")
	require.Contains(t, ask("GET /other HTTP/1.0\r\n\r\n"), "404")
	require.Contains(t, ask(fmt.Sprintf("POST /metrics HTTP/1.0\r\nContent-Length: %d\r\n\r\n", 1<<40)), "HTTP/1.0")
}
