package wire

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRunSurvivesTheKernelCommandLine(t *testing.T) {
	r := Run{Scenarios: []string{"bind", "kill"}, Limit: 90 * time.Second, HugePages: 16, Backend: "iommufd",
		Models: []Model{{"sim:cx5,port=ib", "16.35.4030"}, {"sim:cx5,port=ib,fault=status@NOP#2=BAD_PARAM_ERR/0x1,fw=16.35.1012", "16.35.1012"}}}
	got, err := ParseRun("console=ttyS0 quiet " + r.Words() + " intel_iommu=on\n")
	require.NoError(t, err)
	require.Equal(t, r, got)

	r.Models = nil // a machine without a model
	got, err = ParseRun(r.Words())
	require.NoError(t, err)
	require.Equal(t, r, got)
}

func TestParseRunRefuses(t *testing.T) {
	for _, line := range []string{
		"console=ttyS0",
		"mlxvfio.scenarios=bind",
		"mlxvfio.scenarios=bind mlxvfio.limit=soon",
		"mlxvfio.scenarios=bind mlxvfio.limit=1m mlxvfio.hugepages=two",
		"mlxvfio.scenarios=bind mlxvfio.limit=1m mlxvfio.models=sim:cx5",
		"mlxvfio.scenarios=bind mlxvfio.limit=1m mlxvfio.models=sim:cx5/",
		"mlxvfio.scenarios=bind mlxvfio.limit=1m mlxvfio.models=/1.2.3",
		"mlxvfio.scenarios=bind mlxvfio.limit=1m mlxvfio.other=1",
	} {
		_, err := ParseRun(line)
		require.Error(t, err, line)
	}
}

func TestConsoleIsOneLine(t *testing.T) {
	m := Message{Kind: KindCheck, Name: "bind", Status: Fail, Detail: "first\nsecond\n"}
	require.Equal(t, `=== VM check bind fail first\nsecond`, m.Console())
	require.Equal(t, "=== VM check bind pass", Message{Kind: KindCheck, Name: "bind", Status: Pass}.Console())
	require.Equal(t, "=== VM file dmesg.txt 3 bytes", Message{Kind: KindFile, Name: "dmesg.txt", Detail: "abc"}.Console())
	require.Equal(t, "=== VM end", Message{Kind: KindEnd}.Console())
}
