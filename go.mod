module github.com/mlxvfio/mlxvfio

go 1.26.8

require (
	github.com/stretchr/testify v1.12.1 // indirect
	github.com/u-root/u-root v0.16.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
)
