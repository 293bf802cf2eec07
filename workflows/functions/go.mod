// Four of the nine functions: modules for wasip1, and the same as native servers.
module cwasi.dev/functions

go 1.24

require gonum.org/v1/gonum v0.16.0
