package sim

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	o, err := Parse("sim:cx4,port=ib,fw=14.32.1010,fault=late@NOP#2=5ms,fault=reorder,load=2.5,seed=0x10")
	require.NoError(t, err)
	require.Equal(t, Options{Profile: "cx4", Port: PortIB, Firmware: Version{14, 32, 1010},
		Faults: []FaultSpec{{"late", "NOP#2=5ms"}, {"reorder", ""}}, Load: 2.5, Seed: 16}, o)
	again, err := Parse(o.String())
	require.NoError(t, err)
	require.Equal(t, o, again)

	for _, s := range []string{"sim", "", "sim:cx5", "cx5", "sim,port=ib", "sim:port=ib"} {
		o, err := Parse(s)
		require.NoError(t, err, s)
		c, err := New(o)
		require.NoError(t, err, s)
		require.Equal(t, "cx5", c.Profile(), s)
		require.Equal(t, PortIB, c.Port(), s)
		require.NoError(t, c.Close())
	}
	for s, want := range map[string]string{
		"sim:nosuch":                    `unknown profile "nosuch"; there are: bf3, cx4, cx5, cx6dx, cx7`,
		"sim:cx8":                       `unknown profile "cx8"; there are: bf3, cx4, cx5, cx6dx, cx7`,
		"sim:cx5,port=usb":              `unknown port "usb"; there are: ib, eth`,
		"sim:cx5,fw=1.2":                `bad word "fw=1.2": want three numbers up to 65535, X.Y.Z`,
		"sim:cx5,fw=1.2.x":              `bad word "fw=1.2.x"`,
		"sim:cx5,load=0":                `bad word "load=0": want a positive number of commands a second`,
		"sim:cx5,load=-1":               `bad word`,
		"sim:cx5,seed=x":                `bad word "seed=x"`,
		"sim:cx5,colour=red":            `unknown word "colour"; there are: PROFILE, port=ib|eth`,
		"sim:cx5,cx4":                   `unknown word "cx4"`,
		"sim:cx5,":                      `unknown word ""`,
		"sim:cx5,fault=nosuch":          `unknown fault "nosuch"; there are: late, lost, `,
		"sim:cx5,fault=late":            `bad fault "late": "" is no duration, want late@[OPCODE][#N|%P]=DURATION`,
		"sim:cx5,fault=late@5":          `is no duration`,
		"sim:cx5,fault=lost@NOSUCH":     `"NOSUCH" is no command`,
		"sim:cx5,fault=lost@#0":         `"0" is no count`,
		"sim:cx5,fault=delivery@NOP=0":  `no delivery status of an error, want delivery@[OPCODE][#N|%P]=STATUS; there are: SIGNAT_ERR, TOK_ERR, `,
		"sim:cx5,fault=status@NOP=OK":   `no command status of an error`,
		"sim:cx5,fault=status@NOP=BAD":  `"BAD" is no command status of an error, want status@[OPCODE][#N|%P]=STATUS[/SYNDROME]; there are: INT_ERR, BAD_OP_ERR, `,
		"sim:cx5,fault=status@NOP=3/zz": `is no syndrome`,
		"sim:cx5,fault=reorder@1":       `it takes no argument, want reorder`,
		"sim:cx5,fault=lost-irq@64":     `no vector below 64`,
		"sim:cx5,fault=issi":            `is no number of 32 bits`,
		"sim:cx5,fault=cmdif-rev@99999": `"99999" is no number of 16 bits`,
		"sim:cx5,fault=syndrome":        `"" is no health syndrome, want syndrome@SYNDROME[+WORD]…; there are: FW_INTERNAL_ERR, `,
		"sim:cx5,fault=fatal@OK":        `no health syndrome, want fatal@[SYNDROME][+WORD]…; there are: FW_INTERNAL_ERR, DEAD_IRISC, `,
	} {
		_, err := Parse(s)
		var u *UsageError
		require.ErrorAs(t, err, &u, s)
		require.Contains(t, err.Error(), want, s)
		require.NotContains(t, err.Error(), "\n", s)
	}
	_, err = New(Options{Functions: 9})
	require.ErrorContains(t, err, "a chip has 1 to 8")
	c, err := New(Options{})
	require.NoError(t, err)
	var u *UsageError
	require.ErrorAs(t, c.SetFault("nosuch", ""), &u)
	require.ErrorAs(t, c.ClearFault("nosuch"), &u)
	require.NoError(t, c.Close())
}
