package bench

import (
	"encoding/json"
	"fmt"
)

// report gathers the rows of a run, and prints them.
type report struct {
	inPlace bool // every message has a row in place, too
	out     Output
	result  Result
	table   *table
	sum     float64 // of the bus bandwidths
	with    int     // rows that have one
}

func (r *report) begin(head string) error {
	if r.out.Table == nil {
		return nil
	}
	r.table = &table{w: r.out.Table}
	return r.table.begin(head)
}

// add measures a message out of place, and in place.
func (r *report) add(measure func(inPlace bool) (Row, error)) error {
	places := []bool{false}
	if r.inPlace {
		places = []bool{false, true}
	}
	var rows []Row
	for _, inPlace := range places {
		row, err := measure(inPlace)
		if row.Wrong != nil {
			r.result.Wrong += *row.Wrong
		}
		if err != nil {
			return err
		}
		if r.out.JSON != nil {
			line, err := json.Marshal(row)
			if err == nil {
				_, err = r.out.JSON.Write(append(line, '\n'))
			}
			if err != nil {
				return fmt.Errorf("write JSON: %w", err)
			}
		}
		if row.BusBW != nil {
			r.sum, r.with = r.sum+*row.BusBW, r.with+1
			r.result.BusBW = r.sum / float64(r.with)
		}
		rows = append(rows, row)
	}
	r.result.Rows = append(r.result.Rows, rows...)
	if r.table != nil {
		return r.table.row(rows)
	}
	return nil
}

func (r *report) end() error {
	if r.table == nil {
		return nil
	}
	return r.table.end(&r.result)
}
