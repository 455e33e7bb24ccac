package blackbox_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/mlxvfio/mlxvfio/health/blackbox"
)

// Keep evidence in a file, and read it again.
func Example() {
	if err := keep(); err != nil {
		fmt.Println("failed:", err)
	}
	// Output:
	// notes.txt: the counter stands
	// damage: []
}

func keep() error {
	dir, err := os.MkdirTemp("", "blackbox")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "box")

	// The file appears under its name when it is whole.
	err = blackbox.Write(path, []blackbox.Section{
		{Name: "notes.txt", Data: []byte("the counter stands")},
		{Name: "health/buffer.bin", Data: make([]byte, 64)},
	}, blackbox.Options{})
	if err != nil {
		return err
	}
	box, err := blackbox.Read(path)
	if err != nil {
		return err // not a black box; one that is damaged is read as far as it goes
	}
	if s, ok := box.Section("notes.txt"); ok {
		fmt.Printf("%s: %s\n", s.Name, s.Data)
	}
	fmt.Println("damage:", box.Damage)
	return nil
}
