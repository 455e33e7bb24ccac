package prm

//go:generate go run github.com/mlxvfio/mlxvfio/internal/prmgen -tables tables -out .
